#include "turns.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define TURNS_PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

constexpr long ns_per_ms = 1'000'000;
constexpr long steal_after = 200 * ns_per_ms;  // of real time, in which this process ran
// Times that: on a busy machine a thread that is ready to run looks asleep.
constexpr int steal_from_sleepers_after = 10;
constexpr long look_again_after = 2 * ns_per_ms;

template <typename Function>
Function real(const char* name, const char* version = nullptr) {
  void* const found = version == nullptr ? dlsym(RTLD_NEXT, name) : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) {
    std::fprintf(stderr, "simulated CUDA: libc has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

#define REAL(name) static const auto real_##name = real<decltype(&name)>(#name)
#define REAL_VERSION(name, version) static const auto real_##name = real<decltype(&name)>(#name, version)

// --- libc's own, for what is below

int lock_really(pthread_mutex_t* mutex) {
  REAL(pthread_mutex_lock);
  return real_pthread_mutex_lock(mutex);
}
int unlock_really(pthread_mutex_t* mutex) {
  REAL(pthread_mutex_unlock);
  return real_pthread_mutex_unlock(mutex);
}
int signal_really(pthread_cond_t* condition) {
  REAL_VERSION(pthread_cond_signal, "GLIBC_2.3.2");
  return real_pthread_cond_signal(condition);
}
int timed_wait_really(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  REAL_VERSION(pthread_cond_timedwait, "GLIBC_2.3.2");
  return real_pthread_cond_timedwait(condition, mutex, until);
}

timespec after(long nanoseconds) {
  timespec moment{};
  clock_gettime(CLOCK_REALTIME, &moment);
  moment.tv_nsec += nanoseconds;
  moment.tv_sec += moment.tv_nsec / 1'000'000'000;
  moment.tv_nsec %= 1'000'000'000;
  return moment;
}

// --- turns

struct Thread {
  unsigned number = 0;
  std::uint64_t clock = 0;
  const void* wants = nullptr;  // what it looks for, and has to wait until it is there
  bool waits = false;  // for that; else it can run, if only to look again
  std::uint64_t woken = 0;  // the latest clock of those who woke others, or it, from that
  pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
};

pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;  // for all that follows; nothing is called while it is held
std::vector<Thread*>& threads() {
  static auto& all = *new std::vector<Thread*>;
  return all;
}
Thread* runs = nullptr;  // who has the turn
std::uint64_t moves = 0;  // how often a clock moved or a turn was given
std::uint64_t latest = 0;  // the clock of who moved last
std::uint64_t driver_free = 0;
unsigned known = 0;
std::atomic<int> looking{0};
std::atomic<int> held{0};  // threads that wait for another process

class Table {
 public:
  Table() { lock_really(&table_lock); }
  ~Table() { unlock_really(&table_lock); }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
};

void give_turn(Thread* to) {
  runs = to;
  ++moves;
  if (to != nullptr) {
    signal_really(&to->turn);
  }
}

// The one that can run and is furthest behind.
Thread* furthest_behind() {
  Thread* found = nullptr;
  for (Thread* thread : threads()) {
    if (!thread->waits && (found == nullptr || thread->clock < found->clock)) {
      found = thread;
    }
  }
  return found;
}

long processor_time() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1000 * ns_per_ms + now.tv_nsec;
}

// The table is locked, but not while this waits. `nanoseconds` of real time at most, as long as the thread cannot run.
void take_turn(Thread* me, long nanoseconds) {
  int slept = 0;
  if (runs == me && me->waits) {
    give_turn(furthest_behind());
  }
  while (runs != me || me->waits) {
    if (runs == nullptr && !me->waits) {
      give_turn(furthest_behind());
      continue;
    }
    const std::uint64_t seen = moves;
    const long ran = processor_time();
    const timespec until = after(me->waits ? nanoseconds : steal_after);
    if (timed_wait_really(&me->turn, &table_lock, &until) != ETIMEDOUT) {
      continue;
    }
    if (me->waits) {
      me->waits = false;
    } else if (moves == seen && held.load() == 0) {
      slept = processor_time() - ran < steal_after / 2 ? slept + 1 : steal_from_sleepers_after;
      if (slept >= steal_from_sleepers_after) {
        give_turn(me);  // who has it computes or sleeps
      }
    } else {
      slept = 0;
    }
  }
}

thread_local Thread* known_self = nullptr;  // once the thread has called CUDA, or was made by one that had

// Forgets the thread when it ends.
struct AtEnd {
  AtEnd() = default;
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() {
    const Table table;
    threads().erase(std::find(threads().begin(), threads().end(), known_self));
    if (runs == known_self) {
      give_turn(furthest_behind());
    }
    known_self = nullptr;  // what it points at stays: somebody may be about to signal it
  }
};

Thread* add_thread(const Thread* parent) {
  auto* const thread = new Thread;
  const Table table;
  thread->number = known++;
  thread->clock = parent == nullptr ? latest : parent->clock;
  threads().push_back(thread);
  return thread;
}

void become(Thread* thread) {
  static thread_local AtEnd at_end;
  static_cast<void>(at_end);
  known_self = thread;
}

Thread* self() {
  if (known_self == nullptr) {
    become(add_thread(nullptr));
  }
  return known_self;
}

// Until somebody wakes those that wait for what the thread wants (Look), or it is time to look again. `there()` says
// whether there is nothing to wait for any more, now that whoever wakes would see that the thread waits; returns that.
template <typename There>
bool wait_for(Thread* me, long nanoseconds, There there) {
  {
    const Table table;
    me->waits = true;
  }
  const bool already = there();
  const Table table;
  if (already) {
    me->waits = false;
  }
  take_turn(me, nanoseconds);
  return already;
}

// While it lives, the thread wants `what`. What was there to be had only when another got that far is not had before.
class Look {
 public:
  Look(Thread* me, const void* what) : me_(me) {
    ++looking;
    const Table table;
    me_->wants = what;
    me_->woken = 0;
  }
  ~Look() {
    const Table table;
    me_->wants = nullptr;
    me_->clock = std::max(me_->clock, me_->woken);
    --looking;
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

 private:
  Thread* me_;
};

// At most `count` of those that wait for `what` can run again.
void wake(const void* what, std::size_t count) {
  if (looking.load() == 0) {
    return;
  }
  Thread* const me = known_self;
  const Table table;
  const std::uint64_t clock = me == nullptr ? latest : me->clock;
  for (Thread* thread : threads()) {
    if (thread->wants != what) {
      continue;
    }
    thread->woken = std::max(thread->woken, clock);
    if (count > 0 && thread->waits) {
      thread->waits = false;
      thread->clock = std::max(thread->clock, clock);
      --count;
      if (runs == nullptr) {
        give_turn(thread);
      }
    }
  }
}

int lock_in_turn(Thread* me, pthread_mutex_t* mutex) {
  int code = 0;
  const auto locks = [&] { return (code = pthread_mutex_trylock(mutex)) != EBUSY; };
  if (locks()) {
    return code;
  }
  const Look look(me, mutex);
  while (!wait_for(me, look_again_after, locks) && !locks()) {
  }
  return code;
}

int wait_in_turn(Thread* me, pthread_cond_t* condition, pthread_mutex_t* mutex, long nanoseconds) {
  {
    const Look look(me, condition);
    wait_for(me, nanoseconds, [&] {
      unlock_really(mutex);
      wake(mutex, 1);
      return false;
    });
  }
  return lock_in_turn(me, mutex);
}

long until(clockid_t clock, const timespec* moment) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::max(0L, (moment->tv_sec - now.tv_sec) * 1'000'000'000 + moment->tv_nsec - now.tv_nsec);
}

bool is_past(clockid_t clock, const timespec* moment) { return until(clock, moment) == 0; }

constexpr long once_a_second = 1'000'000'000;  // a wait may end for no reason

}  // namespace

// --- the clock's

TURNS_PUBLIC uint64_t sim_turns_now(void) {
  Thread* const me = self();
  const Table table;
  return me->clock;
}

TURNS_PUBLIC unsigned sim_turns_thread(void) { return self()->number; }

TURNS_PUBLIC void sim_turns_hold(int on) { held.fetch_add(on != 0 ? 1 : -1); }

namespace {

std::uint64_t move(std::uint64_t (*to)(Thread* me, std::uint64_t amount, int in_driver), std::uint64_t amount,
                   int flag) {
  Thread* const me = self();
  const Table table;
  take_turn(me, steal_after);
  const std::uint64_t began = to(me, amount, flag);
  latest = me->clock;
  ++moves;
  Thread* const next = furthest_behind();
  if (next != nullptr && next->clock < me->clock) {
    give_turn(next);
    take_turn(me, steal_after);
  }
  return began;
}

}  // namespace

TURNS_PUBLIC uint64_t sim_turns_pass(uint64_t nanoseconds, int in_driver) {
  return move(
      [](Thread* me, std::uint64_t amount, int driver) {
        const std::uint64_t began = driver != 0 ? std::max(me->clock, driver_free) : me->clock;
        me->clock = began + amount;
        if (driver != 0) {
          driver_free = me->clock;
        }
        return began;
      },
      nanoseconds, in_driver);
}

TURNS_PUBLIC uint64_t sim_turns_wait(uint64_t moment) {
  return move(
      [](Thread* me, std::uint64_t amount, int /*driver*/) {
        const std::uint64_t began = me->clock;
        me->clock = std::max(me->clock, amount);
        return began;
      },
      moment, 0);
}

// --- libc's, for threads that take turns

namespace {

struct Start {
  Thread* thread;
  void* (*function)(void*);
  void* argument;
};

void* begin(void* data) {
  const Start start = *static_cast<Start*>(data);
  delete static_cast<Start*>(data);
  become(start.thread);
  {
    const Table table;
    take_turn(start.thread, steal_after);
  }
  return start.function(start.argument);
}

}  // namespace

TURNS_PUBLIC int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                                void* argument) noexcept {
  REAL(pthread_create);
  if (known_self == nullptr) {
    return real_pthread_create(thread, attributes, function, argument);
  }
  auto* const start = new Start{add_thread(known_self), function, argument};
  const int code = real_pthread_create(thread, attributes, &begin, start);
  if (code != 0) {
    const Table table;
    threads().erase(std::find(threads().begin(), threads().end(), start->thread));
    delete start;
  }
  return code;
}

TURNS_PUBLIC int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  Thread* const me = known_self;
  return me == nullptr ? lock_really(mutex) : lock_in_turn(me, mutex);
}

TURNS_PUBLIC int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int code = unlock_really(mutex);
  wake(mutex, 1);
  return code;
}

TURNS_PUBLIC int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  wake(condition, 1);
  return signal_really(condition);
}

TURNS_PUBLIC int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  REAL_VERSION(pthread_cond_broadcast, "GLIBC_2.3.2");
  wake(condition, SIZE_MAX);
  return real_pthread_cond_broadcast(condition);
}

TURNS_PUBLIC int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  REAL_VERSION(pthread_cond_wait, "GLIBC_2.3.2");
  Thread* const me = known_self;
  return me == nullptr ? real_pthread_cond_wait(condition, mutex) : wait_in_turn(me, condition, mutex, once_a_second);
}

TURNS_PUBLIC int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* moment) {
  Thread* const me = known_self;
  if (me == nullptr) {
    return timed_wait_really(condition, mutex, moment);
  }
  // The condition's own clock may be the monotonic one; whichever is nearer to the moment is meant.
  const clockid_t clock =
      until(CLOCK_REALTIME, moment) == 0 && until(CLOCK_MONOTONIC, moment) != 0 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  const int code = wait_in_turn(me, condition, mutex, std::min(until(clock, moment), once_a_second));
  return code == 0 && is_past(clock, moment) ? ETIMEDOUT : code;
}

TURNS_PUBLIC int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                        const timespec* moment) {
  REAL(pthread_cond_clockwait);
  Thread* const me = known_self;
  if (me == nullptr) {
    return real_pthread_cond_clockwait(condition, mutex, clock, moment);
  }
  const int code = wait_in_turn(me, condition, mutex, std::min(until(clock, moment), once_a_second));
  return code == 0 && is_past(clock, moment) ? ETIMEDOUT : code;
}

TURNS_PUBLIC int sem_post(sem_t* semaphore) noexcept {
  REAL(sem_post);
  const int code = real_sem_post(semaphore);
  wake(semaphore, 1);
  return code;
}

namespace {

int take_in_turn(Thread* me, sem_t* semaphore, clockid_t clock, const timespec* moment) {
  const auto takes = [&] { return sem_trywait(semaphore) == 0; };
  if (takes()) {
    return 0;
  }
  const Look look(me, semaphore);
  do {
    if (errno != EAGAIN) {
      return -1;
    }
    if (moment != nullptr && is_past(clock, moment)) {
      errno = ETIMEDOUT;
      return -1;
    }
  } while (!wait_for(me, look_again_after, takes) && !takes());
  return 0;
}

}  // namespace

TURNS_PUBLIC int sem_wait(sem_t* semaphore) {
  REAL(sem_wait);
  Thread* const me = known_self;
  return me == nullptr ? real_sem_wait(semaphore) : take_in_turn(me, semaphore, CLOCK_REALTIME, nullptr);
}

TURNS_PUBLIC int sem_timedwait(sem_t* semaphore, const timespec* moment) {
  REAL(sem_timedwait);
  Thread* const me = known_self;
  return me == nullptr ? real_sem_timedwait(semaphore, moment) : take_in_turn(me, semaphore, CLOCK_REALTIME, moment);
}

TURNS_PUBLIC int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* moment) {
  REAL(sem_clockwait);
  Thread* const me = known_self;
  return me == nullptr ? real_sem_clockwait(semaphore, clock, moment) : take_in_turn(me, semaphore, clock, moment);
}
