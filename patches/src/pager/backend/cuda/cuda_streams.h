// The streams of a CUDA device, and when the work on them is over.
//
// A stream has a number and a queue of marks: an event, and a stamp that was taken from the clock just before the event
// was recorded. A use up to stamp u is covered by the first mark with a stamp of at least u: to wait for that
// mark's event is to wait for the use, and for little else. When there is none, one is recorded on the spot.
//
// A driver does not check the handle of a stream that was destroyed: to use it is a crash, or meets another stream that
// has got the same handle since. So a stream that may be destroyed (not `lasting`) is given no mark but when its user
// asks for one; what no mark covers is over when the device is idle. The stream that gets the handle next gets the
// number, too, but not before the device has been idle: what its marks cover then is its own work, or over. The
// driver's identity of a stream, which no other one ever has, tells the two apart; where the driver has none (before
// CUDA 12.0), streams that may be destroyed are any_stream.
//
// Thread-safe. A thread that waits for the device holds no lock meanwhile.
#ifndef LMS_CUDA_STREAMS_H
#define LMS_CUDA_STREAMS_H

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "../backend.h"
#include "cuda_device.h"

namespace lms {

class CudaStreams {
 public:
  // `clock` is the backend's clock of stamps.
  CudaStreams(std::shared_ptr<CudaDevice> device, std::atomic<std::uint64_t>* clock);
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;
  ~CudaStreams();  // no thread waits any more

  // The number of a stream, given to it now if need be; any_stream when there are no more numbers, or, of a stream that
  // may be destroyed, while it cannot be told from those that had the handle before. Takes no lock for a stream that
  // has one. The default stream is lasting, whatever is said.
  StreamId number(std::uintptr_t handle, bool lasting);

  bool lasting(StreamId stream) const { return stream >= any_stream || streams_[stream].lasting; }

  CudaStream handle(StreamId stream) const { return reinterpret_cast<CudaStream>(streams_[stream].handle); }

  // See Backend.
  void mark(StreamId stream);
  bool order(const Uses& uses, StreamId user);
  bool over(const Uses& uses);

  // The uses of everything that is on the stream now.
  Uses uses_of(StreamId stream) const { return Uses{stream_bit(stream), clock_->load(std::memory_order_acquire)}; }

 private:
  // An event in the queue, or one that a thread still waits for.
  struct Event {
    CudaEvent handle = nullptr;
    unsigned holders = 0;
  };
  struct Mark {
    std::uint64_t stamp;
    Event* event;
  };
  struct Stream {
    std::uintptr_t handle = 0;  // fixed once the stream has its number, as is the next
    bool lasting = true;
    std::atomic<unsigned long long> identity{0};  // of one that is not: the driver's; of the stream with the number
    std::atomic<std::uint64_t> done{0};  // work up to this stamp is over
    std::mutex lock;  // guards what follows
    std::deque<Mark> marks;  // by stamp
    unsigned long long heir = 0;  // the identity of the stream that has the handle now, without the number yet
    std::uint64_t heir_since = UINT64_MAX;  // a stamp: work of those before it has none above that
    std::size_t prune_at = 0;
    std::vector<std::unique_ptr<Event>> events;  // all of them
    std::vector<Event*> idle;
  };
  enum class Outcome : std::uint8_t {
    done,
    capturing,  // nothing may be recorded on the stream now
    gone,  // the stream was destroyed, or may have been; its work may go on
    failed
  };

  bool identify(std::uintptr_t handle, unsigned long long* identity) const;
  bool take_over(Stream* stream);
  bool is_over(const Stream& stream, std::uint64_t until) const;
  bool capturing(const Stream& stream) const;
  bool synchronize(std::uint64_t until);
  bool wait_on_device(Stream* stream, std::uint64_t until, CudaStream user);
  bool wait_on_host(Stream* stream, std::uint64_t until);
  bool resolve(Outcome outcome, std::uint64_t until);

  // The stream's lock is held.
  Outcome cover(Stream* stream, std::uint64_t until, Mark* mark);
  Outcome record(Stream* stream);
  bool is_done(const Event& event) const;
  static void release(Stream* stream, Event* event);
  static void retire(Stream* stream, std::uint64_t stamp);
  void prune(Stream* stream);

  const std::shared_ptr<CudaDevice> device_;
  const CudaDriver& driver_;
  std::atomic<std::uint64_t>* const clock_;
  std::atomic<std::uint64_t> synchronized_{0};  // the device was idle after all work up to this stamp
  std::atomic<StreamId> last_{0};  // the highest number given out
  std::mutex adding_;
  std::array<Stream, any_stream> streams_;  // by number; 0 is the host
};

}  // namespace lms
#endif  // LMS_CUDA_STREAMS_H
