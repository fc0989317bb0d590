// Devices, streams, events, captures and the schedule: everything whose order matters.
//
// One lock (Machine::lock) guards it all; operations run without it.
#ifndef SIM_STREAMS_H
#define SIM_STREAMS_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "clock.h"
#include "settings.h"

#define SIM_PUBLIC __attribute__((visibility("default")))

namespace sim {

struct Stream;
struct Device;
struct Graph;

// One recording of an event.
struct Recording {
  bool done = false;
  Stream* stream = nullptr;
  double at_ms = 0;
  Nanoseconds end = 0;  // in the mode timed
};

using Work = std::function<bool()>;  // false: an illegal access

struct Operation {
  Work work;
  Cost cost;
  std::shared_ptr<Recording> wait;    // runs after this one
  std::shared_ptr<Recording> record;  // is complete when this operation is
  std::vector<std::pair<Stream*, std::uint64_t>> after;  // runs after so many operations of these streams
};

enum class NodeKind { kernel = 0, copy = 1, fill = 2, host = 3, empty = 5 };

struct Node {
  NodeKind kind;
  Work work;
  Cost cost;
  std::vector<Node*> dependencies;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::pair<void (*)(void*), void*>> owned;  // user objects: called when the graph goes
};

struct GraphExec {
  Device* device = nullptr;
  std::vector<std::pair<Work, Cost>> works;
};

struct Capture {
  std::uint64_t id = 0;
  int mode = 0;
  std::thread::id thread;
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  bool own_graph = true;
  bool invalidated = false;
  std::set<Stream*> streams;
};

struct Stream {
  Device* device = nullptr;
  void* handle = nullptr;  // null: a default stream
  std::uint64_t id = 0;
  unsigned flags = 0;  // 1: non-blocking
  int priority = 0;
  bool legacy = false;
  bool destroyed = false;
  std::deque<Operation> queue;
  std::uint64_t enqueued = 0;
  std::uint64_t completed = 0;
  bool running = false;
  bool active = false;  // on the machine's list
  unsigned weight = 1;
  std::shared_ptr<Capture> capture;
  std::vector<Node*> capture_tail;
  bool has_thread = false;
  Nanoseconds end = 0;  // of what was enqueued, in the mode timed
  std::condition_variable wake;  // its thread's
};

struct Event {
  Device* device = nullptr;
  unsigned flags = 0;  // 2: no timing
  std::shared_ptr<Recording> last;
  std::shared_ptr<Capture> capture;  // recorded while capturing
  std::vector<Node*> capture_tail;
};

struct Device {
  int index = 0;
  std::atomic<int> error{0};
  std::atomic<int> references{0};
  std::atomic<unsigned> flags{0};
  Stream* legacy = nullptr;
  std::vector<Stream*> streams;
  bool active() const { return references > 0; }
};

class SIM_PUBLIC Machine {
 public:
  int initialize();
  bool initialized() const { return initialized_; }
  Device* device(int index);
  int devices() const { return static_cast<int>(devices_.size()); }

  int create_stream(Device* device, unsigned flags, int priority, void** handle);
  int destroy_stream(Stream* stream);
  // Turns a handle (also 0, 1 and 2, which mean default streams) into a stream; null when there is none such. Does not
  // return when it was a destroyed stream's, and is no other's now.
  Stream* stream(void* handle, Device* current, bool per_thread = false);

  int create_event(Device* device, unsigned flags, Event** event);
  int destroy_event(Event* event);
  bool is_event(Event* event);

  // Adds work to a stream, or to the graph that it captures.
  int enqueue(Stream* stream, NodeKind kind, Work work, Cost cost = {});
  // The same and waits; not while the stream captures.
  int run_now(Stream* stream, Work work, Cost cost = {});
  int record(Event* event, Stream* stream);
  // `driver`: called through the driver's interface, where options make it go wrong.
  int wait_event(Stream* stream, Event* event, bool driver);
  int query_event(Event* event, bool driver);
  int synchronize_event(Event* event, bool driver);
  int elapsed(Event* from, Event* to, float* ms);
  int query_stream(Stream* stream);
  int synchronize_stream(Stream* stream);
  int synchronize_device(Device* device);
  // 0, or the error for a call that must not be made now because of a capture.
  int unsafe_call();

  int exchange_mode(int* mode);
  int begin_capture(Stream* stream, int mode, Graph* into);
  int end_capture(Stream* stream, Graph** graph);
  int capture_status(Stream* stream, int* status, std::uint64_t* id, Graph** graph, std::vector<Node*>* tail);
  int update_dependencies(Stream* stream, const std::vector<Node*>& nodes, bool add);
  int create_graph(Graph** graph);
  int destroy_graph(Graph* graph);
  int instantiate(Graph* graph, GraphExec** exec);
  int launch(GraphExec* exec, Stream* stream);
  int destroy_exec(GraphExec* exec);

  void lose(Device* device, int code);
  void reseed(std::uint64_t seed);
  void drain();
  // Time passes, in which some of what is queued runs.
  void pass();
  std::uint64_t queued();
  void report();
  void reset_device(Device* device);

  std::mutex lock;

 private:
  friend SIM_PUBLIC Machine& machine();
  Machine() = default;

  void watch();
  void report_locked() const;
  int enqueue_locked(std::unique_lock<std::mutex>& guard, Stream* stream, Operation operation);
  int run_timed(std::unique_lock<std::mutex>& guard, Stream* stream, Operation* operation);
  bool over(const Recording& recording) const;
  bool over(const Stream& stream) const;
  bool ready(const Stream& stream) const;
  void run_one(std::unique_lock<std::mutex>& guard, Stream* stream);
  Stream* needed(Stream* stream, int depth) const;
  Stream* pick_any(const Stream* avoid);
  void activate(Stream* stream);
  void deactivate(Stream* stream);
  void advance(std::unique_lock<std::mutex>& guard, unsigned operations);
  void let_some_run(std::unique_lock<std::mutex>& guard, Stream* asked);
  void wait_patiently(std::unique_lock<std::mutex>& guard, Device* device);
  int wait_for(std::unique_lock<std::mutex>& guard, Stream* stream, std::uint64_t count);
  void serve(Stream* stream);
  void invalidate(const std::shared_ptr<Capture>& capture);
  int unsafe_locked();
  void leave_capture(Stream* stream);
  bool answers_early();
  double now_ms() const;

  std::atomic<bool> initialized_{false};
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Stream>> streams_;  // all that ever were: operations may still name them
  std::unordered_map<void*, Stream*> live_streams_;  // by handle
  std::vector<void*> dead_handles_;  // of destroyed streams; new ones get them, the last first
  std::unordered_set<Event*> events_;
  std::unordered_set<Graph*> graphs_;
  std::unordered_set<GraphExec*> execs_;
  std::vector<Stream*> active_;  // with something queued
  std::set<std::shared_ptr<Capture>> captures_;
  std::uint64_t total_queued_ = 0;
  std::uint64_t total_completed_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t waits_ = 0;  // what drop_waits and early_events count
  std::uint64_t answers_ = 0;
  std::uint64_t picks_ = 0;
  std::mt19937_64 random_;
  std::condition_variable done_;
};

SIM_PUBLIC Machine& machine();

// The device of the thread's current context; null: none.
SIM_PUBLIC Device* current_device();
// The stack of current contexts of the thread; its back is current.
SIM_PUBLIC std::vector<Device*>& context_stack();

}  // namespace sim
#endif  // SIM_STREAMS_H
