// What the pager counts. One row per statistic: its member, its name in the interfaces, its meaning. Sizes are in bytes
// of whole pages, times in nanoseconds. "current" and "peak" are states; everything else counts since the pager began.
#ifndef LMS_STATISTICS_H
#define LMS_STATISTICS_H

#include <cstddef>
#include <cstdint>

namespace lms {

// clang-format off
#define LMS_STATISTICS(ROW)                                                                                            \
  /* blocks that live, resident or away */                                                                             \
  ROW(allocated_bytes, "allocated_bytes.current")                                                                      \
  ROW(allocated_bytes_peak, "allocated_bytes.peak")                                                                    \
  ROW(allocated_blocks, "allocated_blocks.current")                                                                    \
  /* live blocks that have device pages */                                                                             \
  ROW(resident_bytes, "resident_bytes.current")                                                                        \
  ROW(resident_bytes_peak, "resident_bytes.peak")                                                                      \
  /* freed blocks that keep their pages for the next request of their size */                                          \
  ROW(cached_bytes, "cached_bytes.current")                                                                            \
  /* resident + cached: what the limit bounds */                                                                       \
  ROW(device_bytes, "device_bytes.current")                                                                            \
  ROW(device_bytes_peak, "device_bytes.peak")                                                                          \
  /* pages of what has left, for what comes: on the host within the limit, too */                                       \
  ROW(kept_bytes, "kept_bytes.current")                                                                                \
  ROW(limit, "limit_bytes")                                                                                            \
  /* by how much the limit was passed, at most, and how often a request had to pass it */                              \
  ROW(over_limit_bytes_peak, "over_limit_bytes.peak")                                                                  \
  ROW(over_limit_requests, "over_limit.requests")                                                                      \
  /* live blocks whose contents are only in the host store */                                                          \
  ROW(away_bytes, "away_bytes.current")                                                                                \
  ROW(away_bytes_peak, "away_bytes.peak")                                                                              \
  ROW(away_blocks, "away_blocks.current")                                                                              \
  /* resident blocks by what keeps them: a pin; the operation that allocated them, or that none used them yet; nothing */ \
  ROW(pinned_bytes, "pinned_bytes.current")                                                                            \
  ROW(protected_bytes, "protected_bytes.current")                                                                      \
  ROW(inactive_bytes, "inactive_bytes.current")                                                                        \
  ROW(inactive_blocks, "inactive_blocks.current")                                                                      \
  /* resident blocks of which the host store holds a valid copy */                                                     \
  ROW(clean_bytes, "clean_bytes.current")                                                                              \
  /* bytes that the host store holds, those of clean blocks included */                                                \
  ROW(store_bytes, "store_bytes.current")                                                                              \
  ROW(store_bytes_peak, "store_bytes.peak")                                                                            \
  /* copies out and in, at any caller's demand */                                                                      \
  ROW(out_bytes, "out.bytes")                                                                                          \
  ROW(out_blocks, "out.blocks")                                                                                        \
  ROW(in_bytes, "in.bytes")                                                                                            \
  ROW(in_blocks, "in.blocks")                                                                                          \
  /* blocks that left without a copy, since the store had one */                                                       \
  ROW(clean_drop_bytes, "clean_drop.bytes")                                                                            \
  ROW(clean_drop_blocks, "clean_drop.blocks")                                                                          \
  /* blocks brought in ahead of need, and how many of them were then used before they left again */                    \
  ROW(prefetch_bytes, "prefetch.bytes")                                                                                \
  ROW(prefetch_blocks, "prefetch.blocks")                                                                              \
  ROW(prefetch_hits, "prefetch.hits")                                                                                  \
  /* blocks paged out ahead of need */                                                                                 \
  ROW(early_out_bytes, "early_out.bytes")                                                                              \
  /* blocks that lms_reclaim paged out */                                                                              \
  ROW(reclaimed_bytes, "reclaimed.bytes")                                                                              \
  /* accesses that no operation announced, served by the fault handler */                                              \
  ROW(faults, "faults")                                                                                                \
  /* requests served by a cached block, and by fresh pages */                                                          \
  ROW(cached_allocations, "allocations.cached")                                                                        \
  ROW(mapped_allocations, "allocations.mapped")                                                                        \
  /* requests for fresh pages, of blocks that are new or come back because they are needed: those for which no */      \
  /* block had to leave, those for which one was paged out, and several; none of those that passed the limit */        \
  ROW(fresh_requests, "requests.fresh")                                                                                \
  ROW(one_out_requests, "requests.one_out")                                                                            \
  ROW(several_out_requests, "requests.several_out")                                                                    \
  /* time that program threads spent waiting for page-outs and page-ins */                                             \
  ROW(stall_ns, "stall_ns")                                                                                            \
  /* failed copies to or from the host store */                                                                        \
  ROW(store_failures, "store_failures")                                                                                \
  /* uses that came as the policy had foreseen, and departures from what it had learned */                             \
  ROW(foreseen_uses, "policy.foreseen")                                                                                \
  ROW(departures, "policy.departures")                                                                                 \
  /* of the budget that the process shares, 0 when it does not: its bytes, those that this process may have of it */   \
  /* now, and how many processes share it */                                                                           \
  ROW(share_budget, "share.budget_bytes")                                                                              \
  ROW(share_bytes, "share.bytes")                                                                                      \
  ROW(sharers, "share.processes")                                                                                      \
  /* bytes that it took from the budget, that it gave to others who had a claim to them, and the time that program */  \
  /* threads waited for others to give */                                                                              \
  ROW(share_taken_bytes, "share.taken_bytes")                                                                          \
  ROW(share_given_bytes, "share.given_bytes")                                                                          \
  ROW(share_wait_ns, "share.wait_ns")
// clang-format on

struct Statistics {
#define LMS_ROW(member, name) std::uint64_t member = 0;
  LMS_STATISTICS(LMS_ROW)
#undef LMS_ROW
};

}  // namespace lms
#endif  // LMS_STATISTICS_H
