#include "cuda_streams.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lms {

namespace {

// A stream's queue holds at most so many marks; when it is full the oldest ones go, and the uses that they covered are
// covered by the next.
constexpr std::size_t cuda_most_marks = 4096;
// Marks are looked through for those that are over when the queue has doubled since, and not before it has this many.
constexpr std::size_t cuda_prune_least = 64;

// A thread that waits sleeps rather than spins: it waits for copies, which take a fraction of a millisecond at least,
// while the program's other threads need the cores.
constexpr unsigned cuda_event_flags = cuda::event_disable_timing | cuda::event_blocking_sync;

void cuda_raise_to(std::atomic<std::uint64_t>* value, std::uint64_t least) {
  std::uint64_t old = value->load(std::memory_order_relaxed);
  while (old < least && !value->compare_exchange_weak(old, least, std::memory_order_acq_rel)) {
  }
}

}  // namespace

CudaStreams::CudaStreams(std::shared_ptr<CudaDevice> device, std::atomic<std::uint64_t>* clock)
    : device_(std::move(device)), driver_(device_->driver), clock_(clock) {}

CudaStreams::~CudaStreams() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  for (const Stream& stream : streams_) {
    for (const auto& event : stream.events) {
      driver_.event_destroy(event->handle);
    }
  }
}

StreamId CudaStreams::number(std::uintptr_t handle, bool lasting) {
  if (handle == cuda::stream_legacy) {
    handle = cuda::stream_default;
  } else if (handle == cuda::stream_per_thread) {
    return any_stream;  // one handle for many streams
  }
  const auto find = [&](StreamId last) {
    StreamId id = 1;
    while (id <= last && streams_[id].handle != handle) {
      ++id;
    }
    return id;
  };
  StreamId last = last_.load(std::memory_order_acquire);
  StreamId id = find(last);
  if (id > last) {
    lasting = lasting || handle == cuda::stream_default;
    unsigned long long identity = 0;
    if (!lasting && !identify(handle, &identity)) {
      return any_stream;
    }
    const std::lock_guard<std::mutex> guard(adding_);
    last = last_.load(std::memory_order_relaxed);
    id = find(last);
    if (id > last && id < any_stream) {
      streams_[id].handle = handle;
      streams_[id].lasting = lasting;
      streams_[id].identity.store(identity, std::memory_order_relaxed);
      last_.store(id, std::memory_order_release);
    }
  }
  return this->lasting(id) || take_over(&streams_[id]) ? id : any_stream;
}

bool CudaStreams::identify(std::uintptr_t handle, unsigned long long* identity) const {
  const CudaScope scope(*device_);
  return scope.ok() && driver_.stream_get_id != nullptr &&
         driver_.stream_get_id(reinterpret_cast<CudaStream>(handle), identity) == cuda::success;
}

// Whether the number is that of the stream, not lasting, that has its handle now. It is when the device has been idle
// since that was first seen. To wait for that here could break a capture: who uses the memory of any_stream waits.
bool CudaStreams::take_over(Stream* stream) {
  unsigned long long identity = 0;
  if (!identify(stream->handle, &identity)) {
    return false;
  }
  if (identity == stream->identity.load(std::memory_order_acquire)) {
    return true;
  }
  const std::lock_guard<std::mutex> guard(stream->lock);
  if (identity != stream->heir) {
    stream->heir = identity;
    stream->heir_since = clock_->fetch_add(1, std::memory_order_acq_rel);
  }
  if (stream->heir_since > synchronized_.load(std::memory_order_acquire)) {
    return false;
  }
  stream->identity.store(identity, std::memory_order_release);
  return true;
}

bool CudaStreams::is_over(const Stream& stream, std::uint64_t until) const {
  return until <= stream.done.load(std::memory_order_acquire) || until <= synchronized_.load(std::memory_order_acquire);
}

void CudaStreams::mark(StreamId stream) {
  if (stream == host_stream || stream >= any_stream || cuda_forked()) {
    return;
  }
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  Stream& marked = streams_[stream];
  const std::lock_guard<std::mutex> guard(marked.lock);
  record(&marked);
}

bool CudaStreams::order(const Uses& uses, StreamId user) {
  if (user == no_stream) {
    return true;
  }
  bool on_host = waits_on_host(user);
  std::uint64_t waits = on_host ? uses.streams : uses.streams & ~stream_bit(user);
  if (waits == 0) {
    return true;
  }
  for (StreamId id = 1; id < any_stream; ++id) {
    if ((waits & stream_bit(id)) != 0 && is_over(streams_[id], uses.until)) {
      waits &= ~stream_bit(id);
    }
  }
  if (waits == 0 || uses.until <= synchronized_.load(std::memory_order_acquire)) {
    return true;
  }
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return false;
  }
  if ((waits & stream_bit(any_stream)) != 0) {
    return synchronize(uses.until);
  }
  // A graph must not wait for what is outside of it: it would do so at every replay.
  on_host = on_host || capturing(streams_[user]);
  for (StreamId id = 1; id < any_stream; ++id) {
    if ((waits & stream_bit(id)) != 0 && !(on_host ? wait_on_host(&streams_[id], uses.until)
                                                   : wait_on_device(&streams_[id], uses.until, handle(user)))) {
      return false;
    }
  }
  return true;
}

bool CudaStreams::over(const Uses& uses) {
  if (uses.streams == 0 || uses.until <= synchronized_.load(std::memory_order_acquire) || cuda_forked()) {
    return true;
  }
  if ((uses.streams & stream_bit(any_stream)) != 0) {
    return false;
  }
  for (StreamId id = 1; id < any_stream; ++id) {
    Stream& stream = streams_[id];
    if ((uses.streams & stream_bit(id)) == 0 || is_over(stream, uses.until)) {
      continue;
    }
    const CudaScope scope(*device_);
    const std::lock_guard<std::mutex> guard(stream.lock);
    Mark mark = {};
    // A mark may also fail for want of memory. What the device answers else, that the event is a capture's, say, is no
    // proof that work is over.
    if (!scope.ok() || cover(&stream, uses.until, &mark) != Outcome::done || !is_done(*mark.event)) {
      return false;
    }
    retire(&stream, mark.stamp);
  }
  return true;
}

bool CudaStreams::is_done(const Event& event) const { return driver_.event_query(event.handle) == cuda::success; }

bool CudaStreams::wait_on_device(Stream* stream, std::uint64_t until, CudaStream user) {
  Outcome outcome;
  {
    const std::lock_guard<std::mutex> guard(stream->lock);
    Mark mark = {};
    outcome = cover(stream, until, &mark);
    if (outcome == Outcome::done) {
      // Asking is cheaper than a wait that the device has to carry out.
      if (!is_done(*mark.event)) {
        return device_->check(driver_.stream_wait_event(user, mark.event->handle, 0), "cuStreamWaitEvent");
      }
      retire(stream, mark.stamp);
      return true;
    }
  }
  return resolve(outcome, until);
}

bool CudaStreams::wait_on_host(Stream* stream, std::uint64_t until) {
  Outcome outcome;
  {
    std::unique_lock<std::mutex> lock(stream->lock);
    Mark mark = {};
    outcome = cover(stream, until, &mark);
    if (outcome == Outcome::done) {
      ++mark.event->holders;
      lock.unlock();
      const CudaResult result = driver_.event_synchronize(mark.event->handle);
      lock.lock();
      release(stream, mark.event);
      if (!device_->check(result, "cuEventSynchronize")) {
        return false;
      }
      retire(stream, mark.stamp);
      return true;
    }
  }
  return resolve(outcome, until);
}

// What else can be done when no mark covers a use.
bool CudaStreams::resolve(Outcome outcome, std::uint64_t until) {
  switch (outcome) {
    case Outcome::capturing:
      return cuda_fail(
          "a stream that used the memory is capturing a CUDA graph, so it is not known when that use ends");
    case Outcome::gone:
      return synchronize(until);
    case Outcome::done:
    case Outcome::failed:
      break;
  }
  return false;
}

bool CudaStreams::synchronize(std::uint64_t until) {
  if (until <= synchronized_.load(std::memory_order_acquire)) {
    return true;
  }
  // To synchronize a device while a stream of it is capturing is an error, and ends the capture. Who captures on a
  // stream that is not lasting, which must not be asked, gets that error.
  for (StreamId id = 1; id <= last_.load(std::memory_order_acquire); ++id) {
    if (streams_[id].lasting && capturing(streams_[id])) {
      return cuda_fail("the whole device has to be waited for, which is not allowed while a CUDA graph is captured");
    }
  }
  const std::uint64_t stamp = clock_->fetch_add(1, std::memory_order_acq_rel);
  if (!device_->check(driver_.ctx_synchronize(), "cuCtxSynchronize")) {
    return false;
  }
  cuda_raise_to(&synchronized_, stamp);
  return true;
}

bool CudaStreams::capturing(const Stream& stream) const {
  int status = cuda::capture_none;
  const CudaResult result = driver_.stream_is_capturing(reinterpret_cast<CudaStream>(stream.handle), &status);
  // The default stream answers with an error while a stream that synchronizes with it captures.
  return result == cuda::stream_capture_implicit || (result == cuda::success && status != cuda::capture_none);
}

// The mark to wait for so that work up to `until` is over: the first with a stamp of at least that.
CudaStreams::Outcome CudaStreams::cover(Stream* stream, std::uint64_t until, Mark* mark) {
  if (!stream->lasting && (stream->marks.empty() || stream->marks.back().stamp < until)) {
    return Outcome::gone;
  }
  const auto find = [&] {
    return std::lower_bound(stream->marks.begin(), stream->marks.end(), until,
                            [](const Mark& one, std::uint64_t stamp) { return one.stamp < stamp; });
  };
  auto found = find();
  if (found == stream->marks.end()) {
    const Outcome outcome = record(stream);
    if (outcome != Outcome::done) {
      return outcome;
    }
    found = find();
  }
  *mark = *found;
  return Outcome::done;
}

CudaStreams::Outcome CudaStreams::record(Stream* stream) {
  if (capturing(*stream)) {
    return Outcome::capturing;
  }
  if (stream->marks.size() >= std::max(stream->prune_at, cuda_prune_least)) {
    prune(stream);
  }
  if (stream->idle.empty()) {
    auto made = std::make_unique<Event>();
    if (!device_->check(driver_.event_create(&made->handle, cuda_event_flags), "cuEventCreate")) {
      return Outcome::failed;
    }
    stream->idle.push_back(made.get());
    stream->events.push_back(std::move(made));
  }
  Event* event = stream->idle.back();
  // Before the event is recorded: what is enqueued in between has a later stamp, or is covered nevertheless.
  const std::uint64_t stamp = clock_->fetch_add(1, std::memory_order_acq_rel);
  const CudaResult result = driver_.event_record(event->handle, reinterpret_cast<CudaStream>(stream->handle));
  if (!device_->check(result, "cuEventRecord")) {
    return result == cuda::invalid_handle || result == cuda::context_is_destroyed ? Outcome::gone : Outcome::failed;
  }
  stream->idle.pop_back();
  event->holders = 1;
  stream->marks.push_back(Mark{stamp, event});
  return Outcome::done;
}

void CudaStreams::release(Stream* stream, Event* event) {
  if (--event->holders == 0) {
    stream->idle.push_back(event);
  }
}

// Work up to the stamp is over.
void CudaStreams::retire(Stream* stream, std::uint64_t stamp) {
  while (!stream->marks.empty() && stream->marks.front().stamp <= stamp) {
    release(stream, stream->marks.front().event);
    stream->marks.pop_front();
  }
  cuda_raise_to(&stream->done, stamp);
}

void CudaStreams::prune(Stream* stream) {
  // Marks end in their order, so the last one that is over is found by halving.
  const auto first_open = std::partition_point(stream->marks.begin(), stream->marks.end(),
                                               [&](const Mark& mark) { return is_done(*mark.event); });
  if (first_open != stream->marks.begin()) {
    retire(stream, std::prev(first_open)->stamp);
  }
  while (stream->marks.size() >= cuda_most_marks) {
    release(stream, stream->marks.front().event);
    stream->marks.pop_front();
  }
  stream->prune_at = std::min(2 * stream->marks.size(), cuda_most_marks);
}

}  // namespace lms
