// How LMS comes in front of the CUDA allocator before PyTorch 2.0. There it is a single object of a class without data,
// which everybody reaches through get(), and free functions beside it. Neither can be set.
//
// So the object gets another table of virtual methods: that of LmsAllocator. The stock methods are called on a second
// object, which has the stock table. The functions are replaced where libraries import them (LmsImports.h). They stay
// replaced, since blocks outlive the switching off of LMS and no stock function knows their addresses; for all other
// memory they do what they did.
//
// Which functions there are differs by release. The list at LMS_FUNCTIONS names those of all, and this file takes the
// signatures from the release it is compiled for.
#include <ATen/cuda/LmsCudaBlocks.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsImports.h>
#include <ATen/cuda/LmsIntercepts.h>
#include <ATen/cuda/LmsStock.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <string>
#include <typeinfo>
#include <utility>

// Functions of c10::cuda::CUDACachingAllocator that take part in what LMS does, in some release from 1.1 to 1.13: those
// that take the address of a block, and those that do something else only while LMS is in front.
#define LMS_FUNCTIONS(LMS_BY_ADDRESS, LMS_IN_FRONT) \
  LMS_BY_ADDRESS(raw_delete)                        \
  LMS_BY_ADDRESS(getBaseAllocation)                 \
  LMS_BY_ADDRESS(recordStream)                      \
  LMS_IN_FRONT(raw_alloc)                           \
  LMS_IN_FRONT(raw_alloc_with_stream)               \
  LMS_IN_FRONT(emptyCache)                          \
  LMS_IN_FRONT(setMemoryFraction)                   \
  LMS_IN_FRONT(getDeviceStats)                      \
  LMS_IN_FRONT(resetPeakStats)                      \
  LMS_IN_FRONT(snapshot)                            \
  LMS_IN_FRONT(currentMemoryAllocated)              \
  LMS_IN_FRONT(maxMemoryAllocated)                  \
  LMS_IN_FRONT(resetMaxMemoryAllocated)             \
  LMS_IN_FRONT(currentMemoryCached)                 \
  LMS_IN_FRONT(maxMemoryCached)                     \
  LMS_IN_FRONT(resetMaxMemoryCached)                \
  LMS_IN_FRONT(notifyCaptureBegin)                  \
  LMS_IN_FRONT(notifyCaptureEnd)

// ------------------------------------------------------------------------------------------------ names

// From inside c10's namespace a name means its function, or, where the release has none, what is declared here.
namespace {
struct Absent {};
// NOLINTBEGIN(readability-identifier-naming)
#define LMS_ABSENT(name) __attribute__((unused)) constexpr Absent name{};
LMS_FUNCTIONS(LMS_ABSENT, LMS_ABSENT)
LMS_ABSENT(memoryProfilingEnabled)
// NOLINTEND(readability-identifier-naming)
}  // namespace

#define LMS_FIND(name) constexpr auto* lms_found_##name = &(name);
namespace c10 {
LMS_FIND(memoryProfilingEnabled)
namespace cuda {
namespace CUDACachingAllocator {
LMS_FUNCTIONS(LMS_FIND, LMS_FIND)
}  // namespace CUDACachingAllocator
}  // namespace cuda
}  // namespace c10

namespace {

using namespace lms_cuda;  // NOLINT(google-build-using-namespace): this file defines a part of it

namespace functions = c10::cuda::CUDACachingAllocator;

// Whether the object has LmsAllocator's table.
std::atomic<bool> in_front{false};

// ------------------------------------------------------------------------------------------------ functions

Imports& imports() {
  static Imports& all = *new Imports;
  return all;
}

// A function and what is called instead of it; nothing where the release lacks it. Tag::intercept is what LMS does.
template <typename Tag, typename Function>
struct Replaced {
  static void add(Function /*absent*/) {}
};
template <typename Tag, typename Result, typename... Args>
struct Replaced<Tag, Result (*)(Args...)> {
  using Function = Result (*)(Args...);

  // Kept, since naming the function again may give its replacement.
  static std::atomic<Function>& original() {
    static std::atomic<Function> function{nullptr};
    return function;
  }
  static Result replacement(Args... args) {
    if (Tag::intercepts()) {
      return Tag::intercept(std::forward<Args>(args)...);
    }
    return original().load(std::memory_order_relaxed)(std::forward<Args>(args)...);
  }
  static void add(Function function) {
    original().store(function);
    imports().add(reinterpret_cast<void*>(function), reinterpret_cast<void*>(&replacement));
  }
};

template <typename Tag, typename Function>
void replace(Function function) {
  Replaced<Tag, Function>::add(function);
}

template <typename Tag, typename Function, typename... Args>
decltype(auto) call_original(Function /*function*/, Args&&... args) {
  return Replaced<Tag, Function>::original().load(std::memory_order_relaxed)(std::forward<Args>(args)...);
}

#define LMS_TAG(name) struct Tag_##name;
LMS_FUNCTIONS(LMS_TAG, LMS_TAG)

// The names are c10's, and CUDA's.
// NOLINTBEGIN(readability-identifier-naming)

// The stock allocator: an object with its table, and the functions that were there.
class Stock {
 public:
  c10::DataPtr allocate(size_t bytes) const { return object()->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const { return object()->raw_deleter(); }

  const void* table() const { return table_; }
  void set_table(const void* table) { table_ = table; }

#define LMS_STOCK_FUNCTION(name)                                                                \
  template <typename... Args>                                                                   \
  decltype(auto) name(Args&&... args) const {                                                   \
    return call_original<Tag_##name>(functions::lms_found_##name, std::forward<Args>(args)...); \
  }
  LMS_FUNCTIONS(LMS_STOCK_FUNCTION, LMS_STOCK_FUNCTION)

 private:
  // An object of a class without data is its table.
  const c10::Allocator* object() const { return reinterpret_cast<const c10::Allocator*>(&table_); }

  const void* table_ = nullptr;
};

Stock& stock_allocator() {
  static Stock& allocator = *new Stock;
  return allocator;
}

class Methods : public Intercepts<Stock> {
 public:
  Methods() : Intercepts<Stock>(&stock_allocator()) {}

  void* getBaseAllocation(void* address, size_t* bytes) const {
    return base_allocation</*Shares=*/false>(address, bytes);
  }
};

#define LMS_DEFINE_TAG(name, always)                                                          \
  struct Tag_##name {                                                                         \
    static bool intercepts() { return (always) || in_front.load(std::memory_order_relaxed); } \
    template <typename... Args>                                                               \
    static decltype(auto) intercept(Args&&... args) {                                         \
      return Methods().name(std::forward<Args>(args)...);                                     \
    }                                                                                         \
  };
#define LMS_DEFINE_BY_ADDRESS(name) LMS_DEFINE_TAG(name, true)
#define LMS_DEFINE_IN_FRONT(name) LMS_DEFINE_TAG(name, false)
LMS_FUNCTIONS(LMS_DEFINE_BY_ADDRESS, LMS_DEFINE_IN_FRONT)

// NOLINTEND(readability-identifier-naming)

// ------------------------------------------------------------------------------------------------ the object

class LmsAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) const override {
    c10::DataPtr data = Methods().allocate(bytes);
    if (owner_of(data.get()) != nullptr) {
      imports().redirect();  // the library that is going to be given the block may have been loaded just now
    }
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
};

const void** table_of(c10::Allocator* object) { return reinterpret_cast<const void**>(object); }

const void* lms_table() {
  static LmsAllocator& ours = *new LmsAllocator;
  return *table_of(&ours);
}

void set_table(const void* table) { __atomic_store_n(table_of(functions::get()), table, __ATOMIC_SEQ_CST); }

// What the object has been in every release before 2.0: eight bytes, the address of its table.
constexpr const char* known_class = "N3c104cuda20CUDACachingAllocator20CudaCachingAllocatorE";

// Finds the stock allocator, once.
void find_stock() {
  if (stock_allocator().table() != nullptr) {
    return;
  }
#define LMS_REPLACE(name) replace<Tag_##name>(functions::lms_found_##name);
  LMS_FUNCTIONS(LMS_REPLACE, LMS_REPLACE)
  stock_allocator().set_table(*table_of(functions::get()));
}

// ------------------------------------------------------------------------------------------------ by release

template <typename Stats, typename Index>
int64_t reserved(Stats (* /*get_stats*/)(Index), Index index) {
  return stock_allocator().getDeviceStats(index).reserved_bytes[0].current;
}
template <typename Index>
int64_t reserved(const Absent* /*get_stats*/, Index index) {
  return static_cast<int64_t>(stock_allocator().currentMemoryCached(index));
}

// PyTorch captures streams since it has the function. The CUDA of older releases may lack what is asked here.
#if CUDART_VERSION >= 10000
template <typename... Args>
bool capturing(void (* /*begin*/)(Args...), cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the default stream cannot be asked while others are captured
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}
#endif
template <typename Stream>
bool capturing(const Absent* /*begin*/, Stream /*stream*/) {
  return false;
}

template <typename Function>
auto is_profiling(Function enabled, int /*preferred*/) -> decltype(enabled()) {
  return enabled();
}
template <typename Function>
bool is_profiling(Function /*absent*/, long /*otherwise*/) {
  return false;
}

template <typename Address, typename Index>
auto report(Address* address, int64_t bytes, Index index, int /*preferred*/)
    -> decltype(reportMemoryUsageToProfiler(address, bytes, bytes, bytes, as_device(index))) {
  const auto stats = Methods().getDeviceStats(index);
  reportMemoryUsageToProfiler(address, bytes, stats.allocated_bytes[0].current, stats.reserved_bytes[0].current,
                              as_device(index));
}
template <typename Address, typename Index>
auto report(Address* address, int64_t bytes, Index index, long /*otherwise*/)
    -> decltype(reportMemoryUsageToProfiler(address, bytes, as_device(index))) {
  reportMemoryUsageToProfiler(address, bytes, as_device(index));
}
template <typename Address, typename Index>
void report(Address* /*address*/, int64_t /*bytes*/, Index /*index*/, ...) {}

}  // namespace

// ------------------------------------------------------------------------------------------------ LmsStock.h

namespace lms_cuda {
namespace stock {

lms_status check() {
  if (in_front.load()) {
    return LMS_OK;
  }
  const char* found = typeid(*functions::get()).name();
  if (std::strcmp(found, known_class) != 0) {
    return lms_fail(LMS_UNSUPPORTED, (std::string("the CUDA allocator is not PyTorch's own, but of class ") + found +
                                      ", and LMS works with PyTorch's own only")
                                         .c_str());
  }
  find_stock();
  return LMS_OK;
}

lms_status install() {
  if (in_front.load()) {
    return LMS_OK;
  }
  imports().redirect();
  if (imports().count() == 0) {
    return lms_fail(LMS_UNSUPPORTED,
                    "no library imports the CUDA allocator's functions, so LMS cannot take part in them; use a PyTorch "
                    "whose libc10_cuda is a shared library");
  }
  set_table(lms_table());
  if (functions::get()->raw_deleter() != &release_block) {
    set_table(stock_allocator().table());
    return lms_fail(LMS_UNSUPPORTED, "this build of PyTorch does not call its CUDA allocator through virtual methods");
  }
  in_front.store(true);
  return LMS_OK;
}

void uninstall() {
  if (*table_of(functions::get()) == lms_table()) {
    set_table(stock_allocator().table());
    in_front.store(false);
  }
}

bool installed() { return in_front.load(); }

bool tells_peers() { return false; }

bool initialized() {
  try {
    reserved_bytes(c10::cuda::current_device());
  } catch (const c10::Error&) {
    return false;  // it knows no device yet
  }
  return true;
}

int64_t reserved_bytes(int device) { return reserved(functions::lms_found_getDeviceStats, device); }

double memory_fraction(int /*device*/) { return 1; }

void empty_cache() { stock_allocator().emptyCache(); }

void release(void* address) { stock_allocator().raw_deleter()(address); }

bool is_out_of_memory(const c10::Error& error) {
  constexpr const char* beginning = "CUDA out of memory";  // there is no class for it in every release
  return std::strncmp(error.what(), beginning, std::strlen(beginning)) == 0;
}

bool is_capturing(cudaStream_t stream) { return capturing(functions::lms_found_notifyCaptureBegin, stream); }

bool profiling() { return is_profiling(c10::lms_found_memoryProfilingEnabled, 0); }

void report_to_profiler(void* address, int64_t bytes, int device) { report(address, bytes, device, 0); }

}  // namespace stock
}  // namespace lms_cuda
