// Puts a stand-in above every kernel for GPUs that would compute there. To be loaded after TensorFlow and before the
// first operation on a GPU.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "list_item.h"
#include "operations.h"
#include "stand_in.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {
namespace {

using tensorflow::KernelDef;
using tensorflow::OpDef;

constexpr int priority = 1000;  // above all of TensorFlow's own

class Factory final : public tensorflow::kernel_factory::OpKernelFactory {
 public:
  tensorflow::OpKernel* Create(tensorflow::OpKernelConstruction* construction) override {
    const std::string& operation = construction->def().op();
    if (operation == "TensorListGetItem" || operation == "TensorListPopBack") {
      return new ListItem(construction);
    }
    return new StandIn(construction);
  }
};

// All that the kernel is given and gives is in host memory: it runs there. A resource is a handle of what may be not.
bool is_of_host(const KernelDef& kernel) {
  const tensorflow::OpRegistrationData* registration = nullptr;
  if (!tensorflow::OpRegistry::Global()->LookUp(kernel.op(), &registration).ok()) {
    return false;
  }
  const auto& names = kernel.host_memory_arg();
  const auto on_host = [&names](const OpDef::ArgDef& argument) {
    return argument.type() != tensorflow::DT_RESOURCE &&
           std::find(names.begin(), names.end(), argument.name()) != names.end();
  };
  const OpDef& definition = registration->op_def;
  return std::all_of(definition.input_arg().begin(), definition.input_arg().end(), on_host) &&
         std::all_of(definition.output_arg().begin(), definition.output_arg().end(), on_host) &&
         definition.input_arg_size() + definition.output_arg_size() > 0;
}

bool register_all() {
  const tensorflow::KernelList all = tensorflow::GetAllRegisteredKernels();
  for (const KernelDef& stock : all.kernel()) {
    if (stock.device_type() != tensorflow::DEVICE_GPU || stays(stock.op()) || is_of_host(stock)) {
      continue;
    }
    auto* own = new KernelDef(stock);  // the registrar takes it
    own->set_priority(own->priority() + priority);
    const tensorflow::kernel_factory::OpKernelRegistrar registrar(own, "StandIn", std::make_unique<Factory>());
  }
  return true;
}

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): without memory nothing would load
[[maybe_unused]] const bool registered = register_all();

}  // namespace
}  // namespace stand_in

extern "C" {

// stand_in::report(). Lives until the thread's next call.
__attribute__((visibility("default"))) const char* stand_in_report() {
  thread_local std::string text;
  text = stand_in::report();
  return text.c_str();
}
}
