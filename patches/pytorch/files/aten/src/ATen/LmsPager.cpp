// The pager in one translation unit: this folder is globbed by the build, ATen/lms is not.
#include <ATen/lms/arena.cc>
#include <ATen/lms/cache.cc>
#include <ATen/lms/fault.cc>
#include <ATen/lms/host_backend.cc>
#include <ATen/lms/iteration_policy.cc>
#include <ATen/lms/lms.cc>
#include <ATen/lms/lru_policy.cc>
#include <ATen/lms/pager.cc>
#include <ATen/lms/policy.cc>
#include <ATen/lms/store.cc>
#include <ATen/lms/thread.cc>
#include <ATen/lms/trace.cc>
