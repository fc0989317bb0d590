// CPU devices with LMS: the stock ones, whose allocator is a decorator (lms_allocator.h) and whose operations keep what
// they use resident (lms_operation.h). Their factory takes precedence over the stock one as soon as this is loaded;
// while LMS is disabled they do what stock devices do.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/lms/lms_allocator.h"
#include "tensorflow/core/common_runtime/lms/lms_cpu.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu.h"
#include "tensorflow/core/common_runtime/lms/lms_operation.h"
#include "tensorflow/core/common_runtime/lms/lms_pagers.h"
#include "tensorflow/core/common_runtime/lms/lms_request.h"
#include "tensorflow/core/common_runtime/lms/lms_status.h"
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
    name_operations();
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

}  // namespace
}  // namespace lms_tensorflow
