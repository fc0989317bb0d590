// C interface of the pager: what a framework's glue and the Python layer (through ctypes) call.
//
// Every size is in bytes. Every function is thread-safe unless it says otherwise, and no C++ exception crosses this
// interface: a function that can fail returns an lms_status, and lms_last_error() then holds one sentence for the
// calling thread that says what went wrong and what to do about it.
#ifndef LMS_H
#define LMS_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"
#include "limit_kind.h"
#include "status_code.h"

#ifdef __cplusplus
extern "C" {
#endif

// A pager: one budget of device memory, one host store, one policy. Handles stay valid until the process ends.
typedef struct lms_pager lms_pager;

// A pin that lms_pin took. Plain data: copy it freely, give it to lms_unpin once.
typedef struct lms_pin_token {
  void* block;          // internal; null: the address is not the pager's, nothing is pinned
  uint64_t generation;  // makes the unpin of a block that was freed in the meantime harmless
} lms_pin_token;

// On a device that serves no faults (CUDA), `strict` makes allocations fail and pins exceed the limit: an operation
// without its data would be an illegal access.
typedef struct lms_options {
  size_t struct_size;      // sizeof(lms_options): lets the struct grow
  uint64_t limit;          // bytes that resident blocks and cached free pages may occupy; >= 0; see limit_kind
  const char* store;       // directories for the host store's files, a line each, or NULL to keep it in host memory
  const char* policy;      // a name that lms_policy_name gives; NULL means "iteration"
  int strict;              // nonzero: exceeding the limit is LMS_OUT_OF_MEMORY instead of being counted
  uint64_t address_space;  // bytes of address space to reserve, up to 1 TiB; 0 means as much as the system grants
  int limit_kind;          // an lms_limit_kind of limit_kind.h
  const char* share;       // how the process shares a budget with others (share/share_terms.h); `limit` is then the
                      // budget, of all of them; UINT64_MAX, for CUDA: what the device has, as it changes.
                      // NULL: it does not, and has the limit for itself
  int unchecked;  // nonzero: what the store's files hold has no checksum
} lms_options;

// Creates a pager on the host backend (device memory is a budget of this machine's RAM) and installs the process-wide
// fault handler. *out is untouched on failure.
LMS_API lms_status lms_create(const lms_options* options, lms_pager** out);

// The same for the CUDA device with that number: device memory is the device's. LMS_UNSUPPORTED: no driver, no such
// device, or one without virtual memory management; LMS_INVALID_ARGUMENT: a limit above the device's memory.
LMS_API lms_status lms_create_cuda(const lms_options* options, int device, lms_pager** out);

// Stops the background worker and gives every cached free page back. Blocks that live stay valid, and readable.
LMS_API void lms_shutdown(lms_pager* pager);

// Reconfigures a pager. NULL/negative members are not special: every member is applied. A new store serves what is
// written from now on; blocks that are away stay where they are until they come back.
LMS_API lms_status lms_configure(lms_pager* pager, const lms_options* options);

// Sets the limit, of the kind LMS_LIMIT_MANAGED, and pages out until the resident blocks fit, or nothing more can
// leave.
LMS_API lms_status lms_set_limit(lms_pager* pager, uint64_t limit);
LMS_API uint64_t lms_limit(lms_pager* pager);

// Allocates a block of at least `bytes` (> 0), zero- or garbage-filled, aligned to a page, resident and writable. Its
// address never changes. *out is untouched on failure.
LMS_API lms_status lms_allocate(lms_pager* pager, size_t bytes, void** out);

// Frees the block that starts at `address`, pinned or not, resident or not. Any thread may free.
LMS_API void lms_free(lms_pager* pager, void* address);

// Nonzero when `address` lies in a live block of this pager (any interior address counts). Takes no lock.
LMS_API int lms_owns(lms_pager* pager, const void* address);

// The pager in whose live block `address` lies, or null when it is in nobody's. Takes no lock.
LMS_API lms_pager* lms_owner(const void* address);

// Brings the block that contains `address` in if it is away and keeps it resident until lms_unpin. `write` nonzero:
// the holder may write, so a clean host copy is dropped. The block also counts as seen (pageable) from now on. An
// address that is not the pager's gives an empty token and LMS_OK. The caller must keep the block alive during the
// call; afterwards it may be freed even while pinned.
LMS_API lms_status lms_pin(lms_pager* pager, const void* address, int write, lms_pin_token* token);
LMS_API void lms_unpin(lms_pager* pager, lms_pin_token token);

// Marks the block that contains `address` as seen: it holds a tensor, so it may be paged out while nothing uses it.
LMS_API void lms_mark_seen(lms_pager* pager, const void* address);

// The span of an operation on the calling thread; scopes nest. A block that is allocated inside a scope is protected
// (paged out only when nothing else is left) until the outermost scope on that thread ends.
LMS_API void lms_scope_begin(lms_pager* pager);
LMS_API void lms_scope_end(lms_pager* pager);

// Pages inactive blocks out until `bytes` have left, or every one that can leave did; frees cached pages first, which
// do not count. *reclaimed gets the bytes of blocks that left. LMS_STORE_FAILED: what had left by then still counts.
LMS_API lms_status lms_reclaim(lms_pager* pager, uint64_t bytes, uint64_t* reclaimed);

// Brings every block back and keeps it: the limit no longer applies until lms_configure or lms_set_limit.
LMS_API lms_status lms_restore_all(lms_pager* pager);

// Policies by index: the name of each, or NULL past the last one.
LMS_API const char* lms_policy_name(size_t index);

// Statistics by index: the name of counter `index` (e.g. "resident_bytes.current") or NULL past the last one;
// lms_statistics fills up to `count` values in the same order and returns how many there are. Names are stable, indices
// are not: another version of the library may have more. See statistics.h for the meaning of each.
LMS_API const char* lms_statistic_name(size_t index);
LMS_API size_t lms_statistics(lms_pager* pager, uint64_t* values, size_t count);
LMS_API void lms_reset_peaks(lms_pager* pager);

// The name of the operation that needed most over the limit since the peaks were reset: writes at most `size` bytes of
// it, the closing 0 included, and returns its length; 0 when the limit was never passed, or it is not known. It is
// known where `name` of lms_name_operations was set, for all pagers: it gives the name of what the calling thread runs,
// or NULL, is called with a pager's lock held, and must not call the pager.
LMS_API size_t lms_over_limit_operation(lms_pager* pager, char* text, size_t size);
LMS_API void lms_name_operations(const char* (*name)(void));

// Records every block event to the text file `path` until lms_trace_stop; one event per line, in program order:
//   b <ns> <thread>               an operation begins on that thread (operations nest)
//   e <ns> <thread>               the innermost operation of that thread ends
//   a <ns> <thread> <id> <bytes>  block <id> is allocated
//   r|w <ns> <thread> <id>        the innermost operation reads | may write the block (pinned until it ends)
//   f <ns> <thread> <id>          the block is freed; ids are never reused within a trace
// <ns> counts from the start of the trace. Blocks already alive appear as an `a` line at the start.
LMS_API lms_status lms_trace_start(lms_pager* pager, const char* path);
LMS_API lms_status lms_trace_stop(lms_pager* pager);

// The sentence for the calling thread's last failure; empty when there was none. Valid until the thread's next call.
LMS_API const char* lms_last_error(void);

// For the glue, whose functions fail in the same way: makes `sentence` the calling thread's last error. Returns
// `status`.
LMS_API lms_status lms_fail(lms_status status, const char* sentence);

#ifdef __cplusplus
}
#endif
#endif  // LMS_H
