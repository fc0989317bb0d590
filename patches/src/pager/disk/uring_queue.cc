#include "uring_queue.h"

#if defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#define LMS_HAS_URING 1
#endif
#endif

#ifdef LMS_HAS_URING
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "../descriptor.h"
#endif

namespace lms {

#ifdef LMS_HAS_URING

namespace {

constexpr unsigned uring_pause_us = 100;

class UringQueue final : public DiskQueue {
 public:
  UringQueue() = default;
  ~UringQueue() override {
    if (requests_ != nullptr) {
      munmap(requests_, sizeof(io_uring_sqe) * entries_);
    }
    if (rings_ != nullptr) {
      munmap(rings_, rings_bytes_);
    }
    if (works_ && ring_ >= 0) {
      close(ring_);
    }
  }

  bool open() {
    io_uring_params params = {};
    const int ring = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
    if (ring < 0) {
      return false;
    }
    ring_ = out_of_the_way(ring);
    // Both rings in one mapping: since Linux 5.4. Before that threads will do.
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) {
      return false;
    }
    entries_ = params.sq_entries;
    rings_bytes_ = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                            params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    rings_ = static_cast<char*>(map(rings_bytes_, IORING_OFF_SQ_RING));
    requests_ = static_cast<io_uring_sqe*>(map(sizeof(io_uring_sqe) * entries_, IORING_OFF_SQES));
    if (rings_ == nullptr || requests_ == nullptr) {
      return false;
    }
    sq_tail_ = at<unsigned>(params.sq_off.tail);
    sq_array_ = at<unsigned>(params.sq_off.array);
    sq_mask_ = *at<unsigned>(params.sq_off.ring_mask);
    cq_head_ = at<unsigned>(params.cq_off.head);
    cq_tail_ = at<unsigned>(params.cq_off.tail);
    cq_mask_ = *at<unsigned>(params.cq_off.ring_mask);
    results_ = at<io_uring_cqe>(params.cq_off.cqes);
    return true;
  }

  void submit(DiskRequest* request) override {
    const unsigned tail = *sq_tail_;  // which only this side changes
    const unsigned index = tail & sq_mask_;
    io_uring_sqe* entry = &requests_[index];
    std::memset(entry, 0, sizeof *entry);
    entry->opcode = request->write ? IORING_OP_WRITEV : IORING_OP_READV;
    entry->fd = request->file;
    entry->off = request->offset;
    entry->addr = reinterpret_cast<std::uintptr_t>(&request->memory);
    entry->len = 1;
    entry->user_data = reinterpret_cast<std::uintptr_t>(request);
    sq_array_[index] = index;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    int taken = -1;
    do {
      taken = enter(1, 0);
    } while (taken < 0 && errno == EINTR);
    if (taken != 1) {
      // Short of memory, or the program has closed the descriptor. The kernel has not taken the entry.
      __atomic_store_n(sq_tail_, tail, __ATOMIC_RELEASE);
      works_ = works_ && errno != EBADF && errno != EOPNOTSUPP;
      disk_move(request);
      over_[over_count_++] = request;
    }
  }

  DiskRequest* wait() override {
    if (over_count_ > 0) {
      return over_[--over_count_];
    }
    while (true) {
      const unsigned head = *cq_head_;  // which only this side changes
      if (head != __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) {
        const io_uring_cqe& result = results_[head & cq_mask_];
        DiskRequest* request = reinterpret_cast<DiskRequest*>(static_cast<std::uintptr_t>(result.user_data));
        request->result = result.res;
        __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
        return request;
      }
      if (enter(0, 1) < 0 && errno != EINTR) {
        works_ = works_ && errno != EBADF && errno != EOPNOTSUPP;
        usleep(uring_pause_us);  // the mapping keeps the ring alive, and results come in all the same
      }
    }
  }

  bool works() const override { return works_; }

 private:
  void* map(std::size_t bytes, off_t offset) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_, offset);
    return memory == MAP_FAILED ? nullptr : memory;
  }

  template <typename T>
  T* at(unsigned offset) {
    return reinterpret_cast<T*>(rings_ + offset);
  }

  int enter(unsigned submit, unsigned wait) {
    return static_cast<int>(
        syscall(SYS_io_uring_enter, ring_, submit, wait, wait > 0 ? IORING_ENTER_GETEVENTS : 0U, nullptr, 0));
  }

  int ring_ = -1;
  bool works_ = true;
  unsigned entries_ = 0;
  std::size_t rings_bytes_ = 0;
  char* rings_ = nullptr;
  io_uring_sqe* requests_ = nullptr;
  unsigned* sq_tail_ = nullptr;
  unsigned* sq_array_ = nullptr;
  unsigned sq_mask_ = 0;
  unsigned* cq_head_ = nullptr;
  unsigned* cq_tail_ = nullptr;
  unsigned cq_mask_ = 0;
  io_uring_cqe* results_ = nullptr;
  DiskRequest* over_[depth] = {};  // that the ring did not take
  unsigned over_count_ = 0;
};

}  // namespace

std::unique_ptr<DiskQueue> make_uring_queue() {
  auto queue = std::make_unique<UringQueue>();
  return queue->open() ? std::unique_ptr<DiskQueue>(std::move(queue)) : nullptr;
}

#else

std::unique_ptr<DiskQueue> make_uring_queue() { return nullptr; }  // built with headers older than Linux 5.1

#endif

}  // namespace lms
