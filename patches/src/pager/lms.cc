#include "lms.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "pager.h"
#include "policy/policies.h"
#include "ram.h"
#include "thread_text.h"

namespace {

using LmsError = lms::ThreadText<lms::Pager>;

// Not inlined, so that what succeeds is.
__attribute__((noinline)) void lms_remember(const std::string& sentence) { LmsError::set(sentence); }

inline lms_status lms_report(const lms::Status& status) {
  if (!status.ok()) {
    lms_remember(status.message);
  }
  return status.code;
}

// Runs `call`, which returns a Status; what it throws becomes one.
template <typename Call>
lms_status lms_guarded(Call call) {
  try {
    return lms_report(call());
  } catch (const std::bad_alloc&) {
    return lms_report(lms::Status(LMS_OUT_OF_MEMORY, "the machine has no memory left for the pager's tables"));
  } catch (const std::exception& error) {
    return lms_report(lms::Status(LMS_UNSUPPORTED, error.what()));
  }
}

// The same for a call without a result.
template <typename Call>
void lms_guarded_call(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    lms_remember(error.what());
  }
}

lms::Pager* lms_unwrap(lms_pager* pager) { return reinterpret_cast<lms::Pager*>(pager); }

// A directory as it is found later too, when the program has changed its own.
std::string lms_absolute(const std::string& path) {
  char folder[PATH_MAX];
  return path.empty() || path[0] == '/' || getcwd(folder, sizeof folder) == nullptr ? path : folder + ("/" + path);
}

// Of lines.
std::vector<std::string> lms_directories(const std::string& lines) {
  std::vector<std::string> directories;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    directories.push_back(lms_absolute(lines.substr(begin, end - begin)));
    begin = end + 1;
  }
  return directories;
}

// Where what leaves makes room in RAM.
lms::Status lms_choose_store(std::vector<std::string>* directories) {
  if (directories->empty()) {
    const char* temporary = std::getenv("TMPDIR");
    const std::string found = lms::first_on_disk({temporary != nullptr ? temporary : "", "/var/tmp", "/tmp", "."});
    if (found.empty()) {
      return lms::Status(LMS_STORE_FAILED,
                         "limit 'auto' needs a folder on a disk, and neither $TMPDIR, /var/tmp, /tmp nor "
                         "the current folder is one that can be written to: say one as 'store'");
    }
    directories->push_back(lms_absolute(found));
  }
  for (const std::string& directory : *directories) {
    if (lms::is_in_ram(directory)) {
      return lms::Status(LMS_INVALID_ARGUMENT, "store: '" + directory +
                                                   "' is in memory, so with limit 'auto' nothing that "
                                                   "is paged out there would make room; choose a folder on a disk");
    }
  }
  return {};
}

lms::Status lms_settings(const lms_options* options, lms::Settings* settings) {
  if (options == nullptr || options->struct_size != sizeof(lms_options)) {
    return lms::Status(LMS_INVALID_ARGUMENT, "the options are of another version of the library");
  }
  settings->limit = options->limit;
  settings->store.directories = lms_directories(options->store != nullptr ? options->store : "");
  settings->store.checks = options->unchecked == 0;
  if (options->policy != nullptr) {
    settings->policy = options->policy;
  }
  settings->strict = options->strict != 0;
  settings->address_space = options->address_space;
  settings->limit_kind = static_cast<lms_limit_kind>(options->limit_kind);
  settings->shared = options->share != nullptr;
  settings->share = settings->shared ? options->share : "";
  return settings->limit_kind == LMS_LIMIT_AUTO ? lms_choose_store(&settings->store.directories) : lms::Status();
}

constexpr std::array<const char*, sizeof(lms::Statistics) / sizeof(std::uint64_t)> lms_statistic_names = {
#define LMS_ROW(member, name) name,
    LMS_STATISTICS(LMS_ROW)
#undef LMS_ROW
};

}  // namespace

lms_status lms_create(const lms_options* options, lms_pager** out) {
  return lms_guarded([&] {
    lms::Settings settings;
    lms::Status status = lms_settings(options, &settings);
    if (status.ok()) {
      lms::Pager* pager = lms::Pager::make(settings, &status);
      if (status.ok()) {
        *out = reinterpret_cast<lms_pager*>(pager);
      }
    }
    return status;
  });
}

lms_status lms_create_cuda(const lms_options* options, int device, lms_pager** out) {
  return lms_guarded([&] {
    lms::Settings settings;
    lms::Status status = lms_settings(options, &settings);
    if (!status.ok()) {
      return status;
    }
    std::unique_ptr<lms::Backend> backend = lms::make_cuda_backend(device, settings.address_space, &status);
    if (backend != nullptr) {
      lms::Pager* pager = lms::Pager::make(std::move(backend), settings, &status);
      if (status.ok()) {
        *out = reinterpret_cast<lms_pager*>(pager);
      }
    }
    return status;
  });
}

void lms_shutdown(lms_pager* pager) {
  lms_guarded_call([&] { lms_unwrap(pager)->shutdown(); });
}

lms_status lms_configure(lms_pager* pager, const lms_options* options) {
  return lms_guarded([&] {
    lms::Settings settings;
    const lms::Status status = lms_settings(options, &settings);
    return status.ok() ? lms_unwrap(pager)->configure(settings) : status;
  });
}

lms_status lms_set_limit(lms_pager* pager, uint64_t limit) {
  return lms_guarded([&] { return lms_unwrap(pager)->set_limit(limit); });
}

uint64_t lms_limit(lms_pager* pager) { return lms_unwrap(pager)->limit(); }

lms_status lms_allocate(lms_pager* pager, size_t bytes, void** out) {
  return lms_guarded([&] { return lms_unwrap(pager)->allocate(bytes, out); });
}

void lms_free(lms_pager* pager, void* address) {
  lms_guarded_call([&] { lms_unwrap(pager)->free(address); });
}

int lms_owns(lms_pager* pager, const void* address) { return lms_unwrap(pager)->owns(address) ? 1 : 0; }

lms_pager* lms_owner(const void* address) { return reinterpret_cast<lms_pager*>(lms::Pager::owner(address)); }

lms_status lms_pin(lms_pager* pager, const void* address, int write, lms_pin_token* token) {
  return lms_guarded([&] {
    lms::Pin pin;
    lms::Status status = lms_unwrap(pager)->pin(address, write != 0, &pin);
    *token = lms_pin_token{pin.block, pin.generation};
    return status;
  });
}

void lms_unpin(lms_pager* pager, lms_pin_token token) {
  lms_guarded_call(
      [&] { lms_unwrap(pager)->unpin(lms::Pin{static_cast<lms::Block*>(token.block), token.generation}); });
}

void lms_mark_seen(lms_pager* pager, const void* address) { lms_unwrap(pager)->mark_seen(address); }

void lms_scope_begin(lms_pager* pager) { lms_unwrap(pager)->begin_scope(); }

void lms_scope_end(lms_pager* pager) {
  lms_guarded_call([&] { lms_unwrap(pager)->end_scope(); });
}

lms_status lms_reclaim(lms_pager* pager, uint64_t bytes, uint64_t* reclaimed) {
  return lms_guarded([&] { return lms_unwrap(pager)->reclaim(bytes, reclaimed); });
}

lms_status lms_restore_all(lms_pager* pager) {
  return lms_guarded([&] { return lms_unwrap(pager)->restore_all(); });
}

const char* lms_policy_name(size_t index) { return lms::policy_name(index); }

const char* lms_statistic_name(size_t index) {
  return index < lms_statistic_names.size() ? lms_statistic_names[index] : nullptr;
}

size_t lms_statistics(lms_pager* pager, uint64_t* values, size_t count) {
  const lms::Statistics statistics = lms_unwrap(pager)->statistics();
  const std::array<std::uint64_t, lms_statistic_names.size()> all = {
#define LMS_ROW(member, name) statistics.member,
      LMS_STATISTICS(LMS_ROW)
#undef LMS_ROW
  };
  std::copy_n(all.begin(), std::min(count, all.size()), values);
  return all.size();
}

void lms_reset_peaks(lms_pager* pager) { lms_unwrap(pager)->reset_peaks(); }

size_t lms_over_limit_operation(lms_pager* pager, char* text, size_t size) {
  const std::string name = lms_unwrap(pager)->over_limit_operation();
  if (size > 0) {
    text[name.copy(text, size - 1)] = 0;
  }
  return name.size();
}

void lms_name_operations(const char* (*name)(void)) { lms::report::set_name_operation(name); }

lms_status lms_trace_start(lms_pager* pager, const char* path) {
  return lms_guarded([&] { return lms_unwrap(pager)->start_trace(path); });
}

lms_status lms_trace_stop(lms_pager* pager) {
  return lms_guarded([&] { return lms_unwrap(pager)->stop_trace(); });
}

const char* lms_last_error(void) { return LmsError::get().c_str(); }

lms_status lms_fail(lms_status status, const char* sentence) { return lms_report(lms::Status(status, sentence)); }
