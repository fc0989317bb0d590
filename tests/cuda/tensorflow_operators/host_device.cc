#define EIGEN_USE_THREADS

#include "host_device.h"

#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace stand_in {
namespace {

class HostDevice final : public tensorflow::Device {
 public:
  HostDevice()
      : Device(tensorflow::Env::Default(),
               BuildDeviceAttributes("/job:localhost/replica:0/task:0/device:CPU:0", tensorflow::DEVICE_CPU,
                                     tensorflow::Bytes(256 << 20), tensorflow::DeviceLocality())),
        pool_(tensorflow::Env::Default(), "stand_in", 1),
        eigen_(pool_.AsEigenThreadPool(), 1) {
    workers_.num_threads = 1;
    workers_.workers = &pool_;
    set_tensorflow_cpu_worker_threads(&workers_);
    set_eigen_cpu_device(&eigen_);
  }

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes /*attributes*/) override {
    return tensorflow::cpu_allocator();
  }
  Status Sync() override { return Status(); }

 private:
  tensorflow::thread::ThreadPool pool_;
  Eigen::ThreadPoolDevice eigen_;
  CpuWorkerThreads workers_;
};

}  // namespace

tensorflow::Device& host_device() {
  static HostDevice& device = *new HostDevice;
  return device;
}

std::unique_ptr<tensorflow::OpKernel> make_host_kernel(const tensorflow::NodeDef& node, int graph_version,
                                                       Status* status) {
  tensorflow::Device& device = host_device();
  return tensorflow::CreateOpKernel(tensorflow::DEVICE_CPU, &device,
                                    device.GetAllocator(tensorflow::AllocatorAttributes()), node, graph_version,
                                    status);
}

}  // namespace stand_in
