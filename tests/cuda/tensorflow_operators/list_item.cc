#include "list_item.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "device_stream.h"
#include "lists.h"
#include "status.h"

namespace stand_in {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Status make_zeros(OpKernelContext* context, const List& list, const Tensor& wanted, int output) {
  TensorShape shape;
  if (!element_shape(list, wanted, &shape)) {
    return invalid_argument("the shape of an element that was never set is not known");
  }
  Tensor* zeros = nullptr;
  Status status = context->allocate_output(output, shape, &zeros);
  if (!status.ok()) {
    return status;
  }
  const DeviceStream stream(context);
  return stream.enqueue("zeros", [to = describe(*zeros), device = stream.device()] {
    if (!accessible(device, to, /*write=*/true)) {
      return internal("an illegal address");
    }
    if (to.bytes != 0) {
      std::memset(to.address, 0, to.bytes);
    }
    return Status();
  });
}

}  // namespace

void ListItem::Compute(OpKernelContext* context) {
  const TensorList* list = list_in(context->input(0));
  OP_REQUIRES(context, list != nullptr, invalid_argument("no list of tensors"));
  const bool pops = type_string() == "TensorListPopBack";
  const std::int64_t size = static_cast<std::int64_t>(list->tensors().size());
  const std::int64_t index = pops ? size - 1 : context->input(1).scalar<std::int32_t>()();
  OP_REQUIRES(context, index >= 0 && index < size, invalid_argument("the list has no such element"));
  const int output = pops ? 1 : 0;
  const Tensor& element = list->tensors()[index];
  if (element.dtype() != tensorflow::DT_INVALID) {
    context->set_output(output, element);
  } else {
    OP_REQUIRES_OK(context, make_zeros(context, describe(*list), context->input(context->num_inputs() - 1), output));
  }
  if (pops) {
    TensorList others = list->Copy();
    others.tensors().pop_back();
    context->set_output(0, to_tensor(std::move(others)));
  }
}

}  // namespace stand_in
