#include <ATen/LmsCollectives.h>
#include <ATen/LmsDevices.h>
#include <ATen/LmsFailures.h>
#include <ATen/LmsObserver.h>
#include <ATen/LmsOperationPins.h>
#include <ATen/LmsOperationTraits.h>
#include <ATen/LmsRecordFunction.h>
#include <ATen/LmsStorages.h>
#include <ATen/core/ivalue.h>
#include <ATen/lms/pager.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lms_torch {
namespace {

// How many ask for the observer. Where it cannot be taken away it does nothing while that is 0.
std::atomic<unsigned> observing{0};

// The observer cannot make its operation fail, but a storage can. False where it can't.
bool refuse_for_good(c10::StorageImpl* storage, const lms::Status& status) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  return refuse_access(storage, "LMS: " + status.message, 0);
}

void begin_operation(const Operation& operation) {
  std::vector<Held>& pins = operation_pins();
  if (!observer_can_leave && observing.load(std::memory_order_acquire) == 0) {
    pins.emplace_back();
    return;
  }
  const auto& inputs = operation.inputs();
  const OperationTraits& traits = operation_traits(operation);
  if (!traits.is_operator && inputs.empty()) {  // a part of the program that it gave a name
    pins.emplace_back();
    return;
  }
  release_collectives();
  const size_t count = known_count.load(std::memory_order_acquire);
  Held begin;
  begin.device = static_cast<uint32_t>(count);
  begin.pin.generation = traits.ours ? 0 : reinterpret_cast<uintptr_t>(&operation);
  // What calls operators for elements of lists needs as little at once as they do. A node of the backward pass makes
  // operations, and may be as much as all of it: a script is one operation.
  const bool by_element = traits.by_element && std::any_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
                            return begins_on_cpu(input, 0);
                          });
  const size_t place = pins.size();
  begin.scope = !by_element && (traits.is_operator ? !traits.allocates : !is_backward_node(operation));
  pins.push_back(begin);
  if (begin.scope) {
    lms::Thread::current().begin_scope();
    for (size_t index = 0; index < count; ++index) {
      known_devices[index].pager()->scope_began();
    }
  }
  CurrentStreams streams;
  bool lacks_data = false;
  const auto hold = [&](const void* address, c10::StorageImpl* storage, bool noticed_write, bool other_write) {
    const KnownDevice* known = find_device(address, count);
    if (known == nullptr || (known->device.refuse_work != nullptr && is_lacking())) {
      return;  // what is to be stopped needs no more, and each attempt may wait for the driver
    }
    Held held;
    held.device = static_cast<uint32_t>(position(known));
    held.stream = streams.of(held.device);
    const bool write = known->notices_writes ? noticed_write : other_write;
    lms::Status status = streams.captured(held.device) ? known->pager()->hold(address)
                                                       : known->pager()->pin(address, write, &held.pin, held.stream);
    if (status.code == LMS_READ_FAILED && refuse_for_good(storage, status)) {
      return;  // the operation's access is the failure
    }
    if (!status.ok()) {
      keep_failure(known, std::move(status));
      if (known->device.refuse_work != nullptr) {
        lacks_data = true;
        begin_lacking(place);
        known->device.refuse_work();
      }
    } else if (held.pin.block != nullptr) {
      pins.push_back(held);
    }
  };
  for (size_t index = 0; index < inputs.size() && !traits.ours && !by_element; ++index) {
    const size_t bit = std::min<size_t>(index, 63);
    if ((traits.viewed >> bit & 1) != 0) {
      continue;
    }
    const auto hold_input = [&](const void* address, c10::StorageImpl* storage) {
      hold(address, storage, (traits.declared >> bit & 1) != 0, (traits.written >> bit & 1) != 0);
    };
    visit_storages(inputs[index], hold_input, 0);
  }
  if (!begin.scope) {
    visit_storages(accumulated_gradient(operation), [&](const void* address, c10::StorageImpl* storage) {
      hold(address, storage, /*noticed_write=*/true, /*other_write=*/true);
    });
  }
  if (lacks_data) {
    // The operation is stopped when it gives the device work. PyTorch logs what is thrown here, with its name.
    throw std::runtime_error("LMS: " + pending_failure().message);
  }
}

void end_operation(const Operation& operation) {
  std::vector<Held>& pins = operation_pins();
  const auto first =
      std::find_if(pins.rbegin(), pins.rend(), [](const Held& held) { return held.pin.block == nullptr; }).base();
  if (first == pins.begin()) {
    return;  // the observer was put in place while the operation ran
  }
  const size_t count = (first - 1)->device;
  end_lacking(static_cast<size_t>(first - pins.begin()) - 1);
  const bool scope = (first - 1)->scope;
  if (count == 0) {
    pins.pop_back();
    return;
  }
  CurrentStreams streams;
  for (auto held = first; held != pins.end(); ++held) {
    streams.set(held->device, held->stream);
  }
  const auto mark_seen = [&](const void* address, c10::StorageImpl* /*storage*/) {
    if (const KnownDevice* known = find_device(address, count)) {
      known->pager()->mark_seen(address, streams.of(position(known)));
    }
  };
  for (const c10::IValue& output : operation_outputs(operation)) {
    visit_storages(output, mark_seen, 0);
  }
  if (!scope) {
    visit_storages(accumulated_gradient(operation), mark_seen);
  }
  keep_for_collective(operation, &pins, first);
  while (true) {
    const Held held = pins.back();
    pins.pop_back();
    if (held.pin.block == nullptr) {
      break;
    }
    known_devices[held.device].pager()->unpin(held.pin, held.stream);
  }
  if (scope) {
    const bool outermost = lms::Thread::current().end_scope();
    for (size_t index = 0; index < count; ++index) {
      known_devices[index].pager()->scope_ended(outermost, streams.asked(index) ? streams.of(index) : lms::host_stream);
    }
  }
  if (pins.empty()) {
    drop_store_failure();  // that a strict limit was passed is still to be reported
  }
}

// The innermost operation that runs on this thread, for those who ask what passed a limit.
const char* running_operation() {
  const std::vector<Held>& pins = operation_pins();
  const auto found = std::find_if(pins.rbegin(), pins.rend(), [](const Held& held) {
    return held.pin.block == nullptr && held.pin.generation != 0;
  });
  return found == pins.rend() ? nullptr : operation_name(*reinterpret_cast<const Operation*>(found->pin.generation));
}

ObserverHandle observer = 0;
bool observer_in_place = false;
std::mutex& observer_lock() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

}  // namespace

lms_status start_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (!observer_in_place) {
    const char* obstacle = observer_obstacle();
    if (obstacle != nullptr) {
      return lms_fail(LMS_UNSUPPORTED, obstacle);
    }
    observer = put_observer_in_place<begin_operation, end_operation>();
    lms_name_operations(running_operation);
    observer_in_place = true;
  }
  observing.fetch_add(1);
  return LMS_OK;
}

void stop_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (observing.fetch_sub(1) == 1 && observer_can_leave) {
    take_observer_away(observer);
    observer_in_place = false;
  }
}

}  // namespace lms_torch

int lms_torch_observes_all(void) { return lms_torch::only_operations_are_shown ? 1 : 0; }
