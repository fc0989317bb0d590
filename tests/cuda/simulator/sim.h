// A simulated CUDA for tests: libcuda.so.1 and libcudart.so.12/.13 on the CPU. This header is what a test program calls
// beside CUDA's own interfaces; libcuda.so.1 exports it. build.py builds the libraries and names the options.
//
// What is simulated, and how strictly:
//  * Devices with a fixed amount of physical memory, in granules of 2 MiB, backed by one memfd each. Fresh memory holds
//    garbage, freed memory is overwritten. A handle may be mapped at several addresses, all of which show the same
//    bytes, and may be exported as a file descriptor.
//  * Virtual memory management with the driver's rules: sizes and alignments are multiples of the granule, a mapping
//    lies in one reservation and over no other mapping, has no access until it is given, and is taken away as a whole.
//  * An operation that touches an address without a mapping or without access loses the context, as on a device: this
//    call or a later one returns CUDA_ERROR_ILLEGAL_ADDRESS, and so does every other one from then on.
//  * The handle of a destroyed stream is not checked: the next stream that is created gets it, and to use it before is
//  a
//    crash.
//  * Streams, events, the legacy default stream, host functions, memory pools of the simplest kind, capture of copies,
//    memsets, host functions and kernels into graphs that run their nodes in the order of capture.
//  * Copies between a device and pageable host memory are over when the call returns; all others are asynchronous.
//  * Kernels run only as CPU functions that a test has registered under the kernel's name (sim_register_kernel). The
//    launch of any other kernel is refused with CUDA_ERROR_NOT_SUPPORTED and said on stderr.
//  * After a fork every call of the child fails with CUDA_ERROR_NOT_INITIALIZED, and device memory is gone there.
//  * Calls from inside a host function fail with CUDA_ERROR_NOT_PERMITTED.
//  * Potentially unsafe calls (allocation and release of memory, waiting, event queries; not cuMemMap and its kin) made
//    while a stream captures fail and end the capture, unless the thread's capture mode allows them.
// Everything else that libcudart exports exists and returns cudaErrorNotSupported.
//
// Three ways to run what was enqueued (option "mode"):
//  * deterministic: nothing runs until the host waits, asks, or much is queued; then a seeded generator picks the
//    stream whose next operation runs, sometimes doing only what the wait needs, sometimes everything else first,
//    sometimes starving a stream. With one host thread the same seed gives the same order.
//  * threads: a thread for each stream, with random pauses; for sanitizers.
//  * timed: everything runs when it is enqueued, and a virtual clock says when it would have ended on the machine that
//    the option "machine" names (clock.h). Processes have a clock each, which NCCL's collectives bring together.
//
// Options are read from the environment as SIM_CUDA_<NAME> when the library is first used, and changed by sim_set:
//  devices          how many there are (1); 0: cuInit fails with CUDA_ERROR_NO_DEVICE. Environment only.
//  memory           bytes of each device (1 GiB), rounded up to granules. Environment only.
//  shared           a file; processes that name the same one share the devices' memory: what one has taken another
//                   cannot have, and cuMemGetInfo counts all (none). Environment only.
//  address_space    bytes of addresses that all devices have together (8 TiB, under ThreadSanitizer 256 GiB); an eighth
//                   of it is the most host memory that cuMemCreate makes. Environment only.
//  mode             deterministic, threads or timed (deterministic). Environment only.
//  machine          the file that describes the machine, for the mode timed. Environment only.
//  work             0: copies, fills and collectives of more than 4 KiB do nothing, and what sim_works tells neither;
//                   memory holds zeros. For programs of which only the time is wanted (1). Environment only.
//  host_access      1: mappings are real, so that CPU code may use device addresses (1). 0: only CUDA's own calls and
//                   sim_pointer can, which is faster. Environment only.
//  seed             of the schedule and of garbage (1)
//  driver_version   as cuDriverGetVersion tells it (13020); newer functions are not found by cuGetProcAddress
//  capability       major * 10 + minor (80)
//  vmm              0: the devices do not support virtual memory management (1)
//  host_vmm         0: the devices cannot map host memory created by cuMemCreate (1)
//  pinned_limit     bytes of host memory that may be page-locked (no limit)
//  sample           0: copies and fills are complete (0). A power of two: they touch only the first 64 bytes of each
//                   such unit of the device's address, for long runs that look nowhere else
//  drop_waits       n: every n-th cuStreamWaitEvent that would have to wait is left out (0: none)
//  early_events     n: every n-th answer of cuEventQuery and cuEventSynchronize about an event that is not over says
//                   that it is (0: none). A stress of what uses the driver must notice both; programs use the runtime.
//  queue            operations that may be queued in deterministic mode before some must run (400)
//  lazy             1: in deterministic mode, only what somebody waits for runs, and what that needs (0)
//  patience         seconds that a wait may last while nothing else happens; then the streams' queues are reported, and
//                   the device is lost with CUDA_ERROR_UNKNOWN; and that an operation may run before the queues are
//                   reported, but in the mode timed (100)
//  fail             NAME:NTH:CODE[,...], as sim_fail. Environment only.
//
// Thread-safety: all functions may be called from any thread at any time.
#ifndef SIM_H
#define SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets an option. 0, or -1 when it does not exist, cannot be changed any more or cannot have that value.
int sim_set(const char* option, const char* value);

// Starts the schedule again from `seed`.
void sim_seed(uint64_t seed);

// Makes the nth call (from now on; 1 is the next) of a function return `code` without doing anything; nth 0: every call
// from now on, until sim_fail_clear. The name is the one in CUDA's headers, without _v2 and the like.
void sim_fail(const char* function, uint64_t nth, int code);
void sim_fail_clear(void);

// While `held` is not 0, calls of a function wait before they do anything.
void sim_hold(const char* function, int held);

// Calls of a function so far, failed ones included; counted by its name without _v2 and the like.
uint64_t sim_calls(const char* function);

// From now on every call for the device fails with `code` (CUDA's own for such a case are 700 and above); what is
// queued never runs, and no call waits for it.
void sim_device_lost(int device, int code);

// The error that the device was lost with; 0 while it is sound.
int sim_device_error(int device);

// Whether the mode is timed.
int sim_timed(void);

// In the mode timed: nanoseconds since the library was first used, as the host sees it; else 0.
uint64_t sim_now(void);

// In the mode timed: writes a table of what happened since the last call to a file, a line for each kernel, copy, call
// and wait: device (-1: the host), stream, lane, start and end in nanoseconds, bytes, name. 0, or -1.
int sim_write_timeline(const char* path);

// In the mode timed: the next host function that this thread enqueues stands for a kernel that does so much and touches
// so many bytes. `peak`: the machine's speed for it, such as "flops.float32". The host passes the framework's time.
// Returns the nanoseconds that the kernel takes; in other modes 0.
uint64_t sim_next_kernel(const char* name, double flop, const char* peak, uint64_t bytes);

// Whether operations do their work (option "work").
int sim_works(void);

// Runs everything that is queued, as far as it can run. For tests without a wait of their own.
void sim_drain(void);

// Operations that are queued and have not run.
uint64_t sim_queued(void);

// Writes to stderr what is queued on every stream, and what each waits for.
void sim_report_queues(void);

// Bytes of physical memory in use on a device.
uint64_t sim_used_bytes(int device);

// Bytes of host memory that are page-locked.
uint64_t sim_pinned_bytes(void);

// Mappings that exist, of all devices; cudaMalloc and cuMemAlloc count as one each.
uint64_t sim_mappings(void);

// Whether all of [address, address + bytes) is mapped, and the device may read it (access 1) or write it (access 3).
int sim_accessible(int device, uint64_t address, uint64_t bytes, int access);

// Where the CPU finds the memory that a device address shows, for an access of at most `bytes`, or null when that is
// not accessible (access as above) or lies in more than one mapping. The pointer goes past the mapping: it is the same
// for all of a page's addresses.
void* sim_pointer(int device, uint64_t address, uint64_t bytes, int access);

// How an operation (a host function or a registered kernel) reports that it touched what it must not: the device is
// lost as by an illegal address.
void sim_illegal_access(int device);

// A kernel's stand-in. args: as the program passed them, each pointing at a copy of the argument, which lives as long
// as the launch. Returns nothing; may call sim_pointer and sim_illegal_access, but not CUDA.
typedef struct {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  int device;
} sim_launch;
typedef void (*sim_kernel)(void** args, const sim_launch* launch);

// Registers `function` as the kernel `name` (as the compiler writes it: mangled), with the sizes of its arguments in
// bytes. Again: replaces it; null function: forgets it.
void sim_register_kernel(const char* name, sim_kernel function, unsigned count, const size_t* sizes);

// The kernels that were launched without a stand-in, one name a line. Lives until the next call.
const char* sim_refused_kernels(void);

#ifdef __cplusplus
}
#endif
#endif  // SIM_H
