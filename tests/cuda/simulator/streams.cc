#include "streams.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "calls.h"
#include "codes.h"
#include "memory.h"
#include "sim.h"

namespace sim {

namespace {

int& thread_mode() {
  static thread_local int mode = 0;  // global
  return mode;
}

void before_fork() {
  machine().lock.lock();
  memory().before_fork();
}
void after_fork_parent() {
  memory().after_fork(false);
  machine().lock.unlock();
}
void after_fork_child() {
  memory().after_fork(true);
  machine().lock.unlock();
  set_forked();
}

}  // namespace

Machine& machine() {
  static Machine* const one = new Machine;  // never destroyed: threads of streams outlive main
  return *one;
}

std::vector<Device*>& context_stack() {
  // Of all threads that ever were: memory is also freed after a thread's own objects are gone.
  static auto& all = *new std::deque<std::vector<Device*>>;
  static auto& adding = *new std::mutex;
  static thread_local std::vector<Device*>* const stack = [] {
    const std::lock_guard<std::mutex> guard(adding);
    all.emplace_back();
    return &all.back();
  }();
  return *stack;
}

Device* current_device() {
  const std::vector<Device*>& stack = context_stack();
  return stack.empty() ? nullptr : stack.back();
}

double Machine::now_ms() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Machine::initialize() {
  const std::lock_guard<std::mutex> guard(lock);
  if (settings().devices == 0) {
    return no_device;
  }
  if (!initialized_) {
    memory();
    random_.seed(settings().seed);
    for (int i = 0; i < settings().devices; ++i) {
      devices_.push_back(std::make_unique<Device>());
      Device* device = devices_.back().get();
      device->index = i;
      streams_.push_back(std::make_unique<Stream>());
      device->legacy = streams_.back().get();
      device->legacy->device = device;
      device->legacy->legacy = true;
      device->legacy->id = next_id_++;
      device->streams.push_back(device->legacy);
    }
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (timed() == nullptr) {
      std::thread([this] { watch(); }).detach();
    }
    initialized_ = true;
  }
  return success;
}

Device* Machine::device(int index) {
  return index >= 0 && index < devices() ? devices_[static_cast<std::size_t>(index)].get() : nullptr;
}

int Machine::create_stream(Device* device, unsigned flags, int priority, void** handle) {
  const std::lock_guard<std::mutex> guard(lock);
  streams_.push_back(std::make_unique<Stream>());
  Stream* made = streams_.back().get();
  made->device = device;
  made->flags = flags;
  made->priority = priority;
  made->id = next_id_++;
  device->streams.push_back(made);
  made->handle = made;
  if (!dead_handles_.empty()) {
    made->handle = dead_handles_.back();
    dead_handles_.pop_back();
  }
  live_streams_[made->handle] = made;
  *handle = made->handle;
  return success;
}

int Machine::destroy_stream(Stream* stream) {
  const std::lock_guard<std::mutex> guard(lock);
  if (live_streams_.erase(stream->handle) == 0) {
    return invalid_handle;  // a default stream
  }
  dead_handles_.push_back(stream->handle);
  if (stream->capture != nullptr) {
    invalidate(stream->capture);
    leave_capture(stream);
  }
  stream->destroyed = true;  // what is queued still runs
  return success;
}

Stream* Machine::stream(void* handle, Device* current, bool per_thread) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value == 2 || (value == 0 && per_thread)) {
    static thread_local std::map<Device*, void*> own;
    void*& made = own[current];
    if (made == nullptr) {
      create_stream(current, 0, 0, &made);
    }
    handle = made;
  } else if (value <= 1) {
    return current->legacy;
  }
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = live_streams_.find(handle);
  if (found != live_streams_.end()) {
    return found->second;
  }
  if (std::find(dead_handles_.begin(), dead_handles_.end(), handle) != dead_handles_.end()) {
    std::fprintf(stderr, "simulated CUDA: the handle %p of a destroyed stream was used\n", handle);
    std::abort();
  }
  return nullptr;
}

int Machine::create_event(Device* device, unsigned flags, Event** event) {
  const std::lock_guard<std::mutex> guard(lock);
  *event = new Event;
  (*event)->device = device;
  (*event)->flags = flags;
  events_.insert(*event);
  return success;
}

int Machine::destroy_event(Event* event) {
  const std::lock_guard<std::mutex> guard(lock);
  if (events_.erase(event) == 0) {
    return invalid_handle;
  }
  delete event;
  return success;
}

bool Machine::is_event(Event* event) {
  const std::lock_guard<std::mutex> guard(lock);
  return events_.count(event) != 0;
}

// --- the schedule

void Machine::activate(Stream* stream) {
  if (!stream->active) {
    stream->active = true;
    active_.push_back(stream);
    static constexpr unsigned weights[] = {1, 1, 8, 64};
    stream->weight = weights[random_() % 4];
  }
}

void Machine::deactivate(Stream* stream) {
  if (stream->active && stream->queue.empty()) {
    stream->active = false;
    active_.erase(std::find(active_.begin(), active_.end(), stream));
  }
}

bool Machine::ready(const Stream& stream) const {
  if (stream.running || stream.queue.empty() || stream.device->error != success) {
    return false;  // nothing runs on a lost device
  }
  const Operation& next = stream.queue.front();
  if (next.wait != nullptr && !next.wait->done) {
    return false;
  }
  return std::all_of(next.after.begin(), next.after.end(),
                     [](const auto& other) { return other.first->completed >= other.second; });
}

// Runs the stream's next operation, which is ready. Releases the lock meanwhile.
void Machine::run_one(std::unique_lock<std::mutex>& guard, Stream* stream) {
  Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  --total_queued_;
  bool sound = true;
  if (operation.work) {
    stream->running = true;
    guard.unlock();
    sound = operation.work();
    operation.work = nullptr;  // what it captured goes before anybody is told that it is over
    guard.lock();
    stream->running = false;
  }
  ++stream->completed;
  ++total_completed_;
  if (operation.record != nullptr) {
    operation.record->at_ms = now_ms();
    operation.record->done = true;
  }
  deactivate(stream);
  if (!sound && stream->device->error == success) {
    stream->device->error = illegal_address;
  }
  done_.notify_all();
  if (settings().threads) {
    for (Stream* other : active_) {
      other->wake.notify_one();
    }
  }
}

// The stream whose next operation has to run first if the stream's own next one is to run; null: that runs elsewhere.
Stream* Machine::needed(Stream* stream, int depth) const {
  if (stream->running || stream->queue.empty() || depth > 1000) {
    return nullptr;
  }
  const Operation& next = stream->queue.front();
  if (next.wait != nullptr && !next.wait->done) {
    return needed(next.wait->stream, depth + 1);
  }
  for (const auto& other : next.after) {
    if (other.first->completed < other.second) {
      return needed(other.first, depth + 1);
    }
  }
  return stream;
}

// A ready stream by weight, another one than `avoid`; null: none.
Stream* Machine::pick_any(const Stream* avoid) {
  if (++picks_ % 128 == 0) {
    static constexpr unsigned weights[] = {1, 1, 8, 64};
    for (Stream* stream : active_) {
      stream->weight = weights[random_() % 4];
    }
  }
  std::uint64_t total = 0;
  for (Stream* stream : active_) {
    if (stream != avoid && ready(*stream)) {
      total += stream->weight;
    }
  }
  if (total == 0) {
    return nullptr;
  }
  std::uint64_t at = random_() % total;
  for (Stream* stream : active_) {
    if (stream != avoid && ready(*stream)) {
      if (at < stream->weight) {
        return stream;
      }
      at -= stream->weight;
    }
  }
  return nullptr;
}

void Machine::advance(std::unique_lock<std::mutex>& guard, unsigned operations) {
  while (operations-- > 0) {
    Stream* stream = pick_any(nullptr);
    if (stream == nullptr) {
      return;
    }
    run_one(guard, stream);
  }
}

// Somebody asks how far the stream is, or null: any: time passes meanwhile.
void Machine::let_some_run(std::unique_lock<std::mutex>& guard, Stream* asked) {
  if (settings().threads || timed() != nullptr) {
    return;
  }
  if (!settings().lazy) {
    advance(guard, static_cast<unsigned>(random_() % 4));
  } else if (random_() % 8 == 0) {  // who only asks, and never waits, must come to an end
    Stream* must = asked == nullptr ? pick_any(nullptr) : needed(asked, 0);
    if (must != nullptr && ready(*must)) {
      run_one(guard, must);
    }
  }
}

// Waits until something has run. Where nothing does, the program is stuck: says so, and ends the wait.
void Machine::wait_patiently(std::unique_lock<std::mutex>& guard, Device* device) {
  if (done_.wait_for(guard, std::chrono::seconds(settings().patience)) == std::cv_status::timeout) {
    std::fprintf(stderr, "simulated CUDA: device %d is waited for, and nothing runs\n", device->index);
    report_locked();
    if (device->error == success) {
      device->error = unknown_error;
    }
  }
}

// Reports an operation that does not come to its end: who runs it cannot, and who waits may be the one that runs it.
void Machine::watch() {
  std::uint64_t seen = 0;
  std::uint64_t seconds = 0;
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const std::lock_guard<std::mutex> guard(lock);
    const bool runs = std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->running; });
    seconds = runs && total_completed_ == seen ? seconds + 1 : 0;
    seen = total_completed_;
    if (seconds == settings().patience) {
      std::fprintf(stderr, "simulated CUDA: an operation has run for %llu s\n",
                   static_cast<unsigned long long>(seconds));
      report_locked();
    }
  }
}

void Machine::report() {
  const std::lock_guard<std::mutex> guard(lock);
  report_locked();
}

void Machine::report_locked() const {
  for (const auto& stream : streams_) {
    if (stream->queue.empty() && !stream->running) {
      continue;
    }
    std::fprintf(stderr, "  stream %llu of device %d: %zu queued%s", static_cast<unsigned long long>(stream->id),
                 stream->device->index, stream->queue.size(), stream->running ? ", one runs" : "");
    const Operation* const next = stream->queue.empty() ? nullptr : &stream->queue.front();
    if (next != nullptr && next->wait != nullptr && !next->wait->done) {
      std::fprintf(stderr, ", the next waits for an event of stream %llu",
                   static_cast<unsigned long long>(next->wait->stream->id));
    }
    std::fprintf(stderr, "\n");
  }
}

// Waits until so many operations of the stream are complete.
int Machine::wait_for(std::unique_lock<std::mutex>& guard, Stream* stream, std::uint64_t count) {
  Device* device = stream->device;
  if (timed() != nullptr) {
    const Nanoseconds end = stream->end;
    guard.unlock();  // others go on meanwhile
    timed()->wait_until(end, current_call());
    guard.lock();
    return device->error;
  }
  // 0: only what is needed; 1: anything; 2: everything else first
  const unsigned manner = settings().threads || settings().lazy ? 0 : static_cast<unsigned>(random_() % 3);
  if (settings().lazy && random_() % 4 == 0) {
    // To wait makes nothing faster on a device: other threads go on meanwhile, and enqueue what may not come too early.
    done_.wait_for(guard, std::chrono::microseconds(500));
  }
  while (stream->completed < count && device->error == success) {
    if (settings().threads) {
      wait_patiently(guard, device);
      continue;
    }
    Stream* must = needed(stream, 0);
    Stream* next = manner == 0 ? must : pick_any(manner == 2 ? must : nullptr);
    if (next == nullptr) {
      next = must;
    }
    if (next != nullptr) {
      run_one(guard, next);
    } else {
      wait_patiently(guard, device);  // another thread runs what has to run first
    }
  }
  return device->error;
}

void Machine::serve(Stream* stream) {
  std::unique_lock<std::mutex> guard(lock);
  std::minstd_rand random(static_cast<unsigned>(settings().seed * 31 + stream->id));
  while (true) {
    while (!ready(*stream)) {
      stream->wake.wait(guard);
    }
    const unsigned pause = static_cast<unsigned>(random() % 16);
    if (pause < 2) {
      guard.unlock();
      if (pause == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      } else {
        std::this_thread::yield();
      }
      guard.lock();
    }
    if (ready(*stream)) {
      run_one(guard, stream);
    }
  }
}

// Runs the operation at once, and notes when it would have ended.
int Machine::run_timed(std::unique_lock<std::mutex>& guard, Stream* stream, Operation* operation) {
  Device* device = stream->device;
  Nanoseconds ready = stream->end;
  for (const Stream* other : device->streams) {
    const bool serial = stream->legacy ? (other->flags & 1) == 0 : other->legacy && (stream->flags & 1) == 0;
    ready = serial ? std::max(ready, other->end) : ready;
  }
  if (operation->wait != nullptr) {
    ready = std::max(ready, operation->wait->end);
  }
  if (operation->cost.agree) {
    guard.unlock();
    ready = operation->cost.agree(std::max(ready, timed()->now()));
    guard.lock();
    ready = std::max(ready, stream->end);
  }
  stream->end = timed()->place(device->index, stream->id, operation->cost, ready);
  if (operation->record != nullptr) {
    operation->record->stream = stream;
    operation->record->end = stream->end;
    operation->record->at_ms = static_cast<double>(stream->end) / 1e6;
    operation->record->done = true;
  }
  ++stream->enqueued;
  ++stream->completed;
  if (operation->work) {
    guard.unlock();
    const bool sound = operation->work();
    operation->work = nullptr;
    guard.lock();
    if (!sound && device->error == success) {
      device->error = illegal_address;
    }
  }
  return device->error;
}

bool Machine::over(const Recording& recording) const {
  return recording.done && (timed() == nullptr || recording.end <= timed()->now());
}

bool Machine::over(const Stream& stream) const {
  return stream.completed == stream.enqueued && (timed() == nullptr || stream.end <= timed()->now());
}

int Machine::enqueue_locked(std::unique_lock<std::mutex>& guard, Stream* stream, Operation operation) {
  Device* device = stream->device;
  if (device->error != success) {
    return device->error;
  }
  if (timed() != nullptr) {
    return run_timed(guard, stream, &operation);
  }
  if (stream->legacy) {
    for (Stream* other : device->streams) {
      if (other != stream && (other->flags & 1) == 0 && other->completed < other->enqueued) {
        operation.after.emplace_back(other, other->enqueued);
      }
    }
  } else if ((stream->flags & 1) == 0 && device->legacy->completed < device->legacy->enqueued) {
    operation.after.emplace_back(device->legacy, device->legacy->enqueued);
  }
  if (operation.record != nullptr) {
    operation.record->stream = stream;
  }
  stream->queue.push_back(std::move(operation));
  ++stream->enqueued;
  ++total_queued_;
  activate(stream);
  if (settings().threads) {
    if (!stream->has_thread) {
      stream->has_thread = true;
      std::thread([this, stream] { serve(stream); }).detach();
    }
    stream->wake.notify_one();
    return success;
  }
  if (total_queued_ > settings().queue) {
    advance(guard, static_cast<unsigned>(random_() % settings().queue) + 1);
  } else if (random_() % 16 == 0 && !settings().lazy) {
    advance(guard, static_cast<unsigned>(random_() % 4) + 1);  // as a device does that is not idle
  }
  return success;
}

// --- operations

int Machine::enqueue(Stream* stream, NodeKind kind, Work work, Cost cost) {
  std::unique_lock<std::mutex> guard(lock);
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) {
      return capture_invalidated;
    }
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->work = std::move(work);
    node->cost = std::move(cost);
    node->dependencies = stream->capture_tail;
    stream->capture_tail = {node.get()};
    stream->capture->graph->nodes.push_back(std::move(node));
    return success;
  }
  if (stream->legacy) {
    for (const auto& capture : captures_) {
      if (!capture->invalidated && capture->mode != 2 && (capture->origin->flags & 1) == 0) {
        invalidate(capture);
        return capture_implicit;
      }
    }
  }
  Operation operation;
  operation.work = std::move(work);
  operation.cost = std::move(cost);
  return enqueue_locked(guard, stream, std::move(operation));
}

int Machine::run_now(Stream* stream, Work work, Cost cost) {
  std::unique_lock<std::mutex> guard(lock);
  if (stream->capture != nullptr) {
    invalidate(stream->capture);
    return capture_unsupported;
  }
  if (const int refused = unsafe_locked()) {
    return refused;
  }
  Operation operation;
  operation.work = std::move(work);
  operation.cost = std::move(cost);
  if (const int code = enqueue_locked(guard, stream, std::move(operation))) {
    return code;
  }
  return wait_for(guard, stream, stream->enqueued);
}

int Machine::record(Event* event, Stream* stream) {
  std::unique_lock<std::mutex> guard(lock);
  if (events_.count(event) == 0 || event->device != stream->device) {
    return invalid_handle;
  }
  if (stream->capture != nullptr) {
    if (stream->capture->invalidated) {
      return capture_invalidated;
    }
    event->capture = stream->capture;
    event->capture_tail = stream->capture_tail;
    event->last = nullptr;
    return success;
  }
  Operation operation;
  operation.record = std::make_shared<Recording>();
  std::shared_ptr<Recording> recording = operation.record;
  const int code = enqueue_locked(guard, stream, std::move(operation));
  if (code == success && events_.count(event) != 0) {
    event->last = std::move(recording);
    event->capture = nullptr;
    event->capture_tail.clear();
  }
  return code;
}

int Machine::wait_event(Stream* stream, Event* event, bool driver) {
  std::unique_lock<std::mutex> guard(lock);
  if (events_.count(event) == 0) {
    return invalid_handle;
  }
  if (event->capture != nullptr && captures_.count(event->capture) == 0) {
    return invalid_value;  // the capture that it was recorded in is over
  }
  if (event->capture != nullptr) {
    if (stream->capture != nullptr && stream->capture != event->capture) {
      invalidate(stream->capture);
      invalidate(event->capture);
      return capture_merge;
    }
    if (event->capture->invalidated) {
      return capture_invalidated;
    }
    if (stream->legacy) {
      invalidate(event->capture);
      return capture_implicit;
    }
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->capture->streams.insert(stream);
      stream->capture_tail.clear();
    }
    for (Node* node : event->capture_tail) {
      if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), node) == stream->capture_tail.end()) {
        stream->capture_tail.push_back(node);
      }
    }
    return success;
  }
  if (stream->capture != nullptr) {
    if (event->last == nullptr) {
      return success;  // was never recorded
    }
    invalidate(stream->capture);
    return capture_isolation;
  }
  if (event->last == nullptr) {
    return success;
  }
  if (over(*event->last)) {
    return stream->device->error;
  }
  const std::uint64_t drop = settings().drop_waits;
  if (driver && drop != 0 && ++waits_ % drop == 0) {
    return success;
  }
  Operation operation;
  operation.wait = event->last;
  return enqueue_locked(guard, stream, std::move(operation));
}

// Whether an event that is asked for is to pass for over before it is; the lock is held.
bool Machine::answers_early() {
  const std::uint64_t early = settings().early_events;
  return early != 0 && ++answers_ % early == 0;
}

int Machine::query_event(Event* event, bool driver) {
  std::unique_lock<std::mutex> guard(lock);
  if (events_.count(event) == 0) {
    return invalid_handle;
  }
  if (event->capture != nullptr) {
    return captured_event;
  }
  if (const int refused = unsafe_locked()) {
    return refused;
  }
  const std::shared_ptr<Recording> last = event->last;
  if (last == nullptr || over(*last)) {
    return event->device->error;
  }
  if (driver && answers_early()) {
    return success;
  }
  let_some_run(guard, last->stream);
  if (event->device->error != success) {
    return event->device->error;
  }
  return over(*last) ? success : not_ready;
}

int Machine::synchronize_event(Event* event, bool driver) {
  std::unique_lock<std::mutex> guard(lock);
  if (events_.count(event) == 0) {
    return invalid_handle;
  }
  if (event->capture != nullptr) {
    return captured_event;
  }
  if (const int refused = unsafe_locked()) {
    return refused;
  }
  const std::shared_ptr<Recording> last = event->last;
  if (last == nullptr || (driver && !over(*last) && answers_early())) {
    return success;
  }
  if (timed() != nullptr) {
    guard.unlock();
    timed()->wait_until(last->end, current_call());
    guard.lock();
  }
  // The recording is one of the operations that the stream had when this began.
  while (!last->done && event->device->error == success) {
    if (const int code = wait_for(guard, last->stream, last->stream->completed + 1)) {
      return code;
    }
  }
  return event->device->error;
}

int Machine::elapsed(Event* from, Event* to, float* ms) {
  const std::lock_guard<std::mutex> guard(lock);
  if (events_.count(from) == 0 || events_.count(to) == 0 || ((from->flags | to->flags) & 2) != 0 ||
      from->last == nullptr || to->last == nullptr) {
    return invalid_handle;
  }
  if (!over(*from->last) || !over(*to->last)) {
    return not_ready;
  }
  *ms = static_cast<float>(to->last->at_ms - from->last->at_ms);
  return success;
}

int Machine::query_stream(Stream* stream) {
  std::unique_lock<std::mutex> guard(lock);
  if (stream->capture != nullptr) {
    invalidate(stream->capture);
    return capture_unsupported;
  }
  if (const int refused = unsafe_locked()) {
    return refused;
  }
  if (!over(*stream)) {
    let_some_run(guard, stream);
  }
  if (stream->device->error != success) {
    return stream->device->error;
  }
  return over(*stream) ? success : not_ready;
}

int Machine::synchronize_stream(Stream* stream) {
  std::unique_lock<std::mutex> guard(lock);
  if (stream->capture != nullptr) {
    invalidate(stream->capture);
    return capture_unsupported;
  }
  if (const int refused = unsafe_locked()) {
    return refused;
  }
  if (stream->legacy) {
    for (std::size_t i = 0; i < stream->device->streams.size(); ++i) {
      Stream* other = stream->device->streams[i];
      if ((other->flags & 1) == 0) {
        if (const int code = wait_for(guard, other, other->enqueued)) {
          return code;
        }
      }
    }
  }
  return wait_for(guard, stream, stream->enqueued);
}

int Machine::synchronize_device(Device* device) {
  std::unique_lock<std::mutex> guard(lock);
  for (const auto& capture : captures_) {
    if (!capture->invalidated && capture->origin->device == device) {
      invalidate(capture);
      return capture_unsupported;
    }
  }
  std::vector<std::pair<Stream*, std::uint64_t>> all;
  for (Stream* stream : device->streams) {
    if (!over(*stream)) {
      all.emplace_back(stream, stream->enqueued);
    }
  }
  std::shuffle(all.begin(), all.end(), random_);
  for (const auto& one : all) {
    if (const int code = wait_for(guard, one.first, one.second)) {
      return code;
    }
  }
  return device->error;
}

int Machine::unsafe_call() {
  const std::lock_guard<std::mutex> guard(lock);
  return unsafe_locked();
}

int Machine::unsafe_locked() {
  if (captures_.empty() || thread_mode() == 2) {
    return success;
  }
  int code = success;
  for (const auto& capture : captures_) {
    const bool own = capture->thread == std::this_thread::get_id() && capture->mode != 2;
    const bool global = thread_mode() == 0 && capture->mode == 0;
    if (!capture->invalidated && (own || global)) {
      invalidate(capture);
      code = capture_unsupported;
    }
  }
  return code;
}

// --- captures

void Machine::invalidate(const std::shared_ptr<Capture>& capture) { capture->invalidated = true; }

int Machine::exchange_mode(int* mode) {
  if (*mode < 0 || *mode > 2) {
    return invalid_value;
  }
  std::swap(*mode, thread_mode());
  return success;
}

int Machine::begin_capture(Stream* stream, int mode, Graph* into) {
  const std::lock_guard<std::mutex> guard(lock);
  if (mode < 0 || mode > 2) {
    return invalid_value;
  }
  if (stream->legacy) {
    return capture_unsupported;
  }
  if (stream->capture != nullptr) {
    return 401;  // illegal state
  }
  auto capture = std::make_shared<Capture>();
  capture->id = next_id_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->own_graph = into == nullptr;
  capture->graph = into == nullptr ? new Graph : into;
  graphs_.insert(capture->graph);
  capture->streams.insert(stream);
  stream->capture = capture;
  stream->capture_tail.clear();
  captures_.insert(capture);
  return success;
}

void Machine::leave_capture(Stream* stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  for (Stream* member : capture->streams) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  captures_.erase(capture);
}

int Machine::end_capture(Stream* stream, Graph** graph) {
  const std::lock_guard<std::mutex> guard(lock);
  const std::shared_ptr<Capture> capture = stream->capture;
  *graph = nullptr;
  if (capture == nullptr) {
    return 401;
  }
  if (capture->origin != stream) {
    invalidate(capture);
    return capture_unmatched;
  }
  if (capture->mode != 2 && capture->thread != std::this_thread::get_id()) {
    return capture_wrong_thread;
  }
  int code = capture->invalidated ? capture_invalidated : success;
  if (code == success) {
    // Every node of the other streams must lead to the origin's last ones.
    std::set<Node*> joined;
    std::vector<Node*> open = stream->capture_tail;
    while (!open.empty()) {
      Node* node = open.back();
      open.pop_back();
      if (joined.insert(node).second) {
        open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
      }
    }
    for (Stream* member : capture->streams) {
      for (Node* node : member->capture_tail) {
        if (joined.count(node) == 0) {
          code = capture_unjoined;
        }
      }
    }
  }
  leave_capture(stream);
  if (code == success) {
    *graph = capture->graph;
  } else if (capture->own_graph) {
    graphs_.erase(capture->graph);
    delete capture->graph;
  }
  return code;
}

int Machine::capture_status(Stream* stream, int* status, std::uint64_t* id, Graph** graph, std::vector<Node*>* tail) {
  const std::lock_guard<std::mutex> guard(lock);
  if (stream->legacy) {
    for (const auto& capture : captures_) {
      if (!capture->invalidated && capture->mode != 2 && (capture->origin->flags & 1) == 0 &&
          capture->origin->device == stream->device) {
        return capture_implicit;
      }
    }
  }
  const std::shared_ptr<Capture>& capture = stream->capture;
  *status = capture == nullptr ? 0 : capture->invalidated ? 2 : 1;
  if (*status == 1) {
    *id = capture->id;
    *graph = capture->graph;
    *tail = stream->capture_tail;
  }
  return success;
}

int Machine::update_dependencies(Stream* stream, const std::vector<Node*>& nodes, bool add) {
  const std::lock_guard<std::mutex> guard(lock);
  if (stream->capture == nullptr) {
    return 401;
  }
  if (!add) {
    stream->capture_tail.clear();
  }
  stream->capture_tail.insert(stream->capture_tail.end(), nodes.begin(), nodes.end());
  return success;
}

int Machine::create_graph(Graph** graph) {
  const std::lock_guard<std::mutex> guard(lock);
  *graph = new Graph;
  graphs_.insert(*graph);
  return success;
}

int Machine::destroy_graph(Graph* graph) {
  std::unique_lock<std::mutex> guard(lock);
  if (graphs_.erase(graph) == 0) {
    return invalid_value;
  }
  guard.unlock();
  for (const auto& owned : graph->owned) {
    owned.first(owned.second);
  }
  delete graph;
  return success;
}

int Machine::instantiate(Graph* graph, GraphExec** exec) {
  const std::lock_guard<std::mutex> guard(lock);
  if (graphs_.count(graph) == 0) {
    return invalid_value;
  }
  *exec = new GraphExec;
  for (const auto& node : graph->nodes) {
    if (node->work) {
      (*exec)->works.emplace_back(node->work, node->cost);
    }
  }
  execs_.insert(*exec);
  return success;
}

int Machine::launch(GraphExec* exec, Stream* stream) {
  std::vector<std::pair<Work, Cost>> works;
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (execs_.count(exec) == 0) {
      return invalid_value;
    }
    works = exec->works;
  }
  for (auto& work : works) {
    if (const int code = enqueue(stream, NodeKind::empty, std::move(work.first), std::move(work.second))) {
      return code;
    }
  }
  return success;
}

int Machine::destroy_exec(GraphExec* exec) {
  const std::lock_guard<std::mutex> guard(lock);
  if (execs_.erase(exec) == 0) {
    return invalid_value;
  }
  delete exec;
  return success;
}

// --- tests' own

void Machine::lose(Device* device, int code) {
  const std::lock_guard<std::mutex> guard(lock);
  device->error = code;
  done_.notify_all();
}

void Machine::reseed(std::uint64_t seed) {
  const std::lock_guard<std::mutex> guard(lock);
  random_.seed(seed);
  picks_ = 0;
  waits_ = 0;
  answers_ = 0;
}

void Machine::drain() {
  std::unique_lock<std::mutex> guard(lock);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = streams_[i].get();
    wait_for(guard, stream, stream->enqueued);
  }
}

void Machine::pass() {
  std::unique_lock<std::mutex> guard(lock);
  let_some_run(guard, nullptr);
}

std::uint64_t Machine::queued() {
  const std::lock_guard<std::mutex> guard(lock);
  return total_queued_;
}

void Machine::reset_device(Device* device) {
  const std::lock_guard<std::mutex> guard(lock);
  for (Stream* stream : device->streams) {
    total_queued_ -= stream->queue.size();
    stream->completed += stream->queue.size();
    stream->queue.clear();
    deactivate(stream);
  }
  device->error = success;
}

}  // namespace sim

extern "C" {

SIM_PUBLIC int sim_set(const char* option, const char* value) {
  if (!sim::settings().set(option, value, false)) {
    return -1;
  }
  if (std::string(option) == "seed") {
    sim::machine().reseed(sim::settings().seed);
  }
  return 0;
}

SIM_PUBLIC void sim_seed(uint64_t seed) {
  sim::settings().seed = seed;
  sim::machine().reseed(seed);
}

SIM_PUBLIC void sim_device_lost(int device, int code) {
  if (sim::machine().initialize() == 0 && sim::machine().device(device) != nullptr) {
    sim::machine().lose(sim::machine().device(device), code);
  }
}

SIM_PUBLIC int sim_device_error(int device) {
  sim::Device* found = sim::machine().device(device);
  return found == nullptr ? 0 : found->error.load();
}

SIM_PUBLIC int sim_timed(void) { return sim::timed() == nullptr ? 0 : 1; }

SIM_PUBLIC uint64_t sim_now(void) { return sim::timed() == nullptr ? 0 : sim::timed()->now(); }

SIM_PUBLIC int sim_write_timeline(const char* path) {
  return sim::timed() != nullptr && sim::timed()->write(path) ? 0 : -1;
}

SIM_PUBLIC int sim_works(void) { return sim::settings().work ? 1 : 0; }

SIM_PUBLIC void sim_drain(void) { sim::machine().drain(); }

SIM_PUBLIC uint64_t sim_queued(void) { return sim::machine().queued(); }

SIM_PUBLIC void sim_report_queues(void) { sim::machine().report(); }

SIM_PUBLIC uint64_t sim_used_bytes(int device) { return sim::memory().used(device); }

SIM_PUBLIC uint64_t sim_pinned_bytes(void) { return sim::memory().pinned_bytes(); }

SIM_PUBLIC uint64_t sim_mappings(void) { return sim::memory().mappings(); }

SIM_PUBLIC int sim_accessible(int device, uint64_t address, uint64_t bytes, int access) {
  sim::Pieces pieces;
  return sim::memory().resolve(device, address, bytes, access, &pieces) ? 1 : 0;
}

SIM_PUBLIC void* sim_pointer(int device, uint64_t address, uint64_t bytes, int access) {
  sim::Pieces pieces;
  if (!sim::memory().resolve(device, address, bytes, access, &pieces) || pieces.size() != 1) {
    return nullptr;
  }
  return pieces[0].pointer;
}

SIM_PUBLIC void sim_illegal_access(int device) { sim_device_lost(device, sim::illegal_address); }
}
