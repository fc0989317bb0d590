// Collectives of torch.distributed, whose work goes on after their operation has returned.
#ifndef ATEN_LMS_COLLECTIVES_H
#define ATEN_LMS_COLLECTIVES_H

#include <ATen/LmsDevices.h>
#include <ATen/LmsOperationPins.h>
#include <ATen/LmsRecordFunction.h>

#include <vector>

// A build of the framework says itself whether it has collectives; a wheel has them when it has their headers.
#if defined(USE_DISTRIBUTED) || (!defined(CAFFE2_BUILD_MAIN_LIB) && __has_include(<torch/csrc/distributed/c10d/Work.hpp>))

#include <ATen/core/class_type.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <typeinfo>
#include <utility>

namespace lms_torch {

// A collective goes on after its operation has returned. So its pins stay until the work is done.
class RunningCollectives {
 public:
  void add(c10::intrusive_ptr<c10d::Work> work, std::vector<Held> pins) {
    // NCCL's are done when the device is; others may still copy on streams of their own.
    if (std::strstr(typeid(*work).name(), "NCCL") == nullptr) {
      for (Held& held : pins) {
        held.stream = known_devices[held.device].device.current_stream != nullptr ? lms::any_stream : held.stream;
      }
    }
    const std::lock_guard<std::mutex> guard(lock_);
    running_.push_back(Collective{std::move(work), std::move(pins)});
    count_.store(running_.size(), std::memory_order_relaxed);
  }

  // Drops the pins of one that is done. To ask may cost a call to the device, so each call asks one, in turn.
  void release_done() {
    if (count_.load(std::memory_order_relaxed) == 0 || capture_possible()) {
      return;
    }
    Collective done;  // destroyed without the lock
    const std::lock_guard<std::mutex> guard(lock_);
    if (running_.empty()) {
      return;
    }
    next_ = (next_ + 1) % running_.size();
    if (!running_[next_].work->isCompleted()) {
      return;
    }
    std::swap(running_[next_], running_.back());
    done = std::move(running_.back());
    running_.pop_back();
    count_.store(running_.size(), std::memory_order_relaxed);
    for (const Held& held : done.pins) {
      known_devices[held.device].pager()->unpin(held.pin, held.stream);
    }
  }

 private:
  struct Collective {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<Held> pins;
  };
  std::mutex lock_;
  std::vector<Collective> running_;
  size_t next_ = 0;
  std::atomic<size_t> count_{0};
};

inline RunningCollectives& running_collectives() {
  static RunningCollectives& collectives = *new RunningCollectives;
  return collectives;
}

// Drops pins that a collective does not need any more.
inline void release_collectives() { running_collectives().release_done(); }

// Keeps the pins of an operation, which begin at `first`, for as long as the collective that it started needs them.
inline void keep_for_collective(const Operation& operation, std::vector<Held>* pins,
                                std::vector<Held>::iterator first) {
  if (first == pins->end()) {
    return;
  }
  for (const c10::IValue& output : operation_outputs(operation)) {
    if (!output.isObject() || *output.type() != *c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>()) {
      continue;
    }
    auto work = output.toCustomClass<c10d::Work>();
    if (work == nullptr) {
      // Part of a group that starts later, and nothing says when it is done.
      for (auto held = first; held != pins->end(); ++held) {
        const KnownDevice& device = known_devices[held->device];
        if (!device.notices_writes) {
          static_cast<void>(device.pager()->hold(held->pin.block->address));  // is pinned, so cannot fail
        }
      }
    } else if (!work->isCompleted()) {
      running_collectives().add(std::move(work), {first, pins->end()});
      pins->erase(first, pins->end());
    }
    return;
  }
}

}  // namespace lms_torch

#else

namespace lms_torch {

inline void release_collectives() {}
inline void keep_for_collective(const Operation& /*operation*/, std::vector<Held>* /*pins*/,
                                std::vector<Held>::iterator /*first*/) {}

}  // namespace lms_torch

#endif

#endif  // ATEN_LMS_COLLECTIVES_H
