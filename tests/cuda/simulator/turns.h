// Host threads in virtual time: each has a clock, and one runs at a time, the one that is behind. libturns.so, to be
// preloaded before the other libraries, for the mode timed; without it all threads share one clock.
//
// Threads are those that have called CUDA. One gives its turn away when its clock has passed another's, and when it has
// to wait for a mutex, a condition or a semaphore, whose functions are the library's; who wakes it brings it up to its
// own clock. So what threads do to one another has one order, that of virtual time, and a program without other sources
// of chance runs the same every time. Where a thread that has the turn neither moves nor waits in such a way for a
// while (it computes, or sleeps), another takes it.
#ifndef TURNS_H
#define TURNS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The calling thread's clock, in nanoseconds.
__attribute__((weak)) uint64_t sim_turns_now(void);

// Lets the thread's clock go on. in_driver: alone among all threads, as the driver's lock has it. Returns when it
// began.
__attribute__((weak)) uint64_t sim_turns_pass(uint64_t nanoseconds, int in_driver);

// Sets the thread's clock to that moment, unless it is past it. Returns what it was.
__attribute__((weak)) uint64_t sim_turns_wait(uint64_t moment);

// Between hold(1) and hold(0) the calling thread waits for another process: that it does nothing meanwhile gives nobody
// its turn.
__attribute__((weak)) void sim_turns_hold(int on);

// The number of the calling thread, from 0 in the order of first calls.
__attribute__((weak)) unsigned sim_turns_thread(void);

#ifdef __cplusplus
}
#endif
#endif  // TURNS_H
