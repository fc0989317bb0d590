// A pager on the simulated device, beside a program's own backend, whose streams have the same handles.
#ifndef LMS_TESTS_PAGER_RIG_H
#define LMS_TESTS_PAGER_RIG_H

#include <memory>
#include <utility>
#include <vector>

#include "backend_rig.h"
#include "pager.h"

namespace rig {

constexpr std::uint64_t paged_address_space = std::uint64_t{8} << 30;

inline lms::Pager* make_pager(const lms::Settings& settings) {
  lms::Status status;
  std::unique_ptr<lms::CudaBackend> paged = lms::make_cuda_backend(0, paged_address_space, &status);
  CHECK(paged != nullptr);
  lms::Pager* pager = lms::Pager::make(std::move(paged), settings, &status);
  if (pager == nullptr) {
    CHECK_FAIL("no pager: %s", status.message.c_str());
  }
  return pager;
}

// The program's streams, as the pager numbers them.
inline std::vector<StreamId> users_of(const Program& program, lms::Pager* pager) {
  std::vector<StreamId> users;
  for (void* handle : program.handles) {
    users.push_back(pager->backend().stream(reinterpret_cast<std::uintptr_t>(handle), /*lasting=*/true));
  }
  return users;
}

}  // namespace rig

#endif  // LMS_TESTS_PAGER_RIG_H
