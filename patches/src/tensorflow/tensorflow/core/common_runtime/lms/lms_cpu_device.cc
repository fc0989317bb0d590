// CPU devices with LMS: the stock ones, whose allocator is a decorator (lms_allocator.h) and whose operations keep what
// they use resident (lms_operation.h). Their factory takes precedence over the stock one as soon as this is loaded;
// while LMS is disabled they do what stock devices do.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/lms/lms_allocator.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu.h"
#include "tensorflow/core/common_runtime/lms/lms_operation.h"
#include "tensorflow/core/common_runtime/lms/lms_request.h"
#include "tensorflow/core/common_runtime/lms/lms_status.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/numa.h"
#include "tensorflow/core/public/session_options.h"

namespace lms_tensorflow {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

Memory& cpu_memory() {
  static Memory& memory = *new Memory;
  return memory;
}

class CpuDevice : public tensorflow::ThreadPoolDevice {
 public:
  CpuDevice(const tensorflow::SessionOptions& options, const std::string& name,
            const tensorflow::DeviceLocality& locality, tensorflow::Allocator* stock)
      // The memory that the device states is the stock factory's.
      : ThreadPoolDevice(options, name, tensorflow::Bytes(256 << 20), locality, decorated(stock, &cpu_memory())),
        stock_(stock),
        numa_node_(locality.numa_node()),
        gpu_options_(options.config.gpu_options()) {}

  // As the stock device of a build with GPUs does it.
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    if (gpu_host_allocator != nullptr && (attributes.gpu_compatible() || gpu_options_.force_gpu_compatible())) {
      tensorflow::Allocator* host = gpu_host_allocator(gpu_options_, numa_node_);
      if (host != stock_) {
        return host;
      }
    }
    return ThreadPoolDevice::GetAllocator(attributes);
  }

  void Compute(OpKernel* kernel, OpKernelContext* context) override {
    if (!any_pager()) {
      ThreadPoolDevice::Compute(kernel, context);
      return;
    }
    Operation operation(kernel, context, nullptr, lms::host_stream);
    if (context->status().ok()) {
      ThreadPoolDevice::Compute(kernel, context);
    }
    operation.finish(context);
    operation.leave();
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) override {
    if (!any_pager()) {
      ThreadPoolDevice::ComputeAsync(kernel, context, std::move(done));
      return;
    }
    auto operation = std::make_shared<Operation>(kernel, context, nullptr, lms::host_stream);
    if (!context->status().ok()) {
      operation->finish(context);
      operation->leave();
      done();
      return;
    }
    // The context may be gone as soon as done() is called, which may be before ComputeAsync returns.
    ThreadPoolDevice::ComputeAsync(kernel, context, [operation, context, done] {
      operation->finish(context);
      done();
    });
    operation->leave();
  }

 private:
  tensorflow::Allocator* stock_;
  int numa_node_;
  tensorflow::GPUOptions gpu_options_;
};

class CpuDeviceFactory : public tensorflow::DeviceFactory {
 public:
  TensorflowStatus ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->emplace_back("/physical_device:CPU:0");
    return TensorflowStatus();
  }

  TensorflowStatus CreateDevices(const tensorflow::SessionOptions& options, const std::string& prefix,
                                 std::vector<std::unique_ptr<tensorflow::Device>>* devices) override {
    bool enabled = false;
    lms::Status status = wanted(options.config, &enabled);
    if (status.ok() && enabled) {
      if (take_over_gpus != nullptr) {
        status = take_over_gpus();  // whose devices are made next
      }
      if (status.ok()) {
        status = enable_cpu_as_requested();
      }
    }
    if (!status.ok()) {
      return to_tensorflow(status);
    }
    const auto asked = options.config.device_count().find("CPU");
    const int count = asked != options.config.device_count().end() ? asked->second : 1;
    const bool on_nodes = options.config.experimental().use_numa_affinity();
    for (int index = 0; index < count; ++index) {
      tensorflow::DeviceLocality locality;
      int node = tensorflow::port::kNUMANoAffinity;
      if (on_nodes) {
        node = index % tensorflow::port::NUMANumNodes();
        locality.set_numa_node(node);
      }
      devices->push_back(std::make_unique<CpuDevice>(options, prefix + "/device:CPU:" + std::to_string(index), locality,
                                                     tensorflow::ProcessState::singleton()->GetCPUAllocator(node)));
    }
    return TensorflowStatus();
  }
};

// Above the stock factories (60, and 70 in a build with GPUs) and below every other kind of device, since the number
// also says which kind of device is preferred.
REGISTER_LOCAL_DEVICE_FACTORY("CPU", CpuDeviceFactory, 75);

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

}  // namespace
}  // namespace lms_tensorflow

lms_status lms_tensorflow_cpu_enable(const lms_options* options, uint64_t min_size) {
  lms_tensorflow::Memory& memory = lms_tensorflow::cpu_memory();
  const std::lock_guard<std::mutex> guard(lms_tensorflow::switching());
  if (min_size == 0) {
    return lms_fail(LMS_INVALID_ARGUMENT, "the least size of a tensor that is paged must be at least 1 byte");
  }
  lms_pager* handle = lms_tensorflow_cpu_pager();
  const lms_status status = handle == nullptr ? lms_create(options, &handle) : lms_configure(handle, options);
  if (status != LMS_OK) {
    return status;
  }
  auto* pager = reinterpret_cast<lms::Pager*>(handle);
  if (memory.pager.load() == nullptr) {
    if (!lms_tensorflow::add_pager(pager)) {
      lms_shutdown(handle);
      return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
    }
    memory.pager.store(pager, std::memory_order_release);
  }
  memory.min_size.store(min_size, std::memory_order_relaxed);
  memory.enabled.store(true, std::memory_order_release);
  lms_tensorflow::cpu_was_switched();
  return LMS_OK;
}

lms_status lms_tensorflow_cpu_disable(void) {
  lms_tensorflow::Memory& memory = lms_tensorflow::cpu_memory();
  const std::lock_guard<std::mutex> guard(lms_tensorflow::switching());
  if (!memory.enabled.load()) {
    return LMS_OK;
  }
  const lms_status status = lms_restore_all(lms_tensorflow_cpu_pager());
  if (status != LMS_OK) {
    return status;
  }
  memory.enabled.store(false);
  lms_tensorflow::cpu_was_switched();
  lms_shutdown(lms_tensorflow_cpu_pager());
  return LMS_OK;
}

int lms_tensorflow_cpu_enabled(void) { return lms_tensorflow::cpu_memory().enabled.load() ? 1 : 0; }

uint64_t lms_tensorflow_cpu_min_size(void) {
  return lms_tensorflow::cpu_memory().min_size.load(std::memory_order_relaxed);
}

lms_pager* lms_tensorflow_cpu_pager(void) {
  return reinterpret_cast<lms_pager*>(lms_tensorflow::cpu_memory().pager.load(std::memory_order_acquire));
}
