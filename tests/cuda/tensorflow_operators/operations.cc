#include "operations.h"

#include <unordered_set>

#include "tensorflow/core/public/version.h"

namespace stand_in {
namespace {

using Names = std::unordered_set<std::string>;

const Names& names_of_handlers() {
  static const Names& names = *new Names{
      // of tensors as they are
      "Bitcast", "Const", "EnsureShape", "ExpandDims", "FakeParam", "HostConst", "Identity", "IdentityN", "Placeholder",
      "PlaceholderV2", "PlaceholderWithDefault", "PreventGradient", "Rank", "Reshape", "Shape", "ShapeN", "Size",
      "Squeeze", "StopGradient", "_EagerConst",
      // control flow, arguments and functions
      "Assert", "BatchFunction", "Case", "ControlTrigger", "DeviceIndex", "EagerPyFunc", "Enter", "Exit", "For", "If",
      "LoopCond", "Merge", "NextIteration", "NoOp", "PartitionedCall", "RefEnter", "RefExit", "RefIdentity", "RefMerge",
      "RefNextIteration", "RefSwitch", "RemoteCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf",
      "StatelessWhile", "Switch", "SymbolicGradient", "SyncDevice", "While", "_Arg", "_ArrayToList", "_DeviceArg",
      "_DeviceRetval", "_If", "_ListToArray", "_Retval", "_SwitchN", "_While",
      // between devices
      "CollectiveAssignGroupV2", "CollectiveInitializeCommunicator", "Recv", "Send", "_CopyFromGpuToHost",
      "_CopyFromHostToGpu", "_HostRecv", "_HostSend", "_Recv", "_Send",
      // whole copies, which a device makes without a kernel
      "Copy", "CopyHost", "DebugGradientIdentity", "DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "DeepCopy",
      // variables
      "AssignVariableOp", "DestroyResourceOp", "DestroyTemporaryVariable", "DisableCopyOnRead", "IsVariableInitialized",
      "MakeWeakResourceHandle", "ReadVariableOp", "TemporaryVariable", "VarHandleOp", "VarIsInitializedOp", "Variable",
      "VariableShape", "VariableV2", "_ReadVariablesOp", "_VarHandlesOp",
      // lists and arrays of tensors
      "EmptyTensorList", "StackClose", "StackCloseV2", "StackPop", "StackPopV2", "StackPush", "StackPushV2", "StackV2",
      "TensorArrayCloseV3", "TensorArrayGradV3", "TensorArrayReadV3", "TensorArraySizeV3", "TensorArrayV3",
      "TensorArrayWriteV3", "TensorListConcatLists", "TensorListElementShape", "TensorListLength", "TensorListPushBack",
      "TensorListReserve", "TensorListResize", "TensorListSetItem",
#if TF_MINOR_VERSION > 2
      "TensorListFromTensor",  // its elements are parts of the tensor; before, a kernel copies them
#endif
      // queues, iterators, and what else keeps tensors
      "AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3", "ConsumeMutexLock", "DeleteIterator",
      "DeleteSessionTensor", "FIFOQueueV2", "FinalizeDataset", "GeneratorDataset", "GetOptions", "GetSessionHandle",
      "GetSessionHandleV2", "GetSessionTensor", "IteratorFromStringHandleV2", "IteratorGetNext",
      "IteratorGetNextAsOptional", "IteratorGetNextSync", "IteratorToStringHandle", "IteratorV2", "MakeIterator",
      "MapClear", "MapIncompleteSize", "MapPeek", "MapSize", "MapStage", "MapUnstage", "MapUnstageNoKey", "MutexLock",
      "MutexV2", "OptionalFromValue", "OptionalGetValue", "OptionalHasValue", "OptionalNone", "OptionsDataset",
      "OrderedMapClear", "OrderedMapIncompleteSize", "OrderedMapPeek", "OrderedMapSize", "OrderedMapStage",
      "OrderedMapUnstage", "OrderedMapUnstageNoKey", "PrefetchDataset", "QueueCloseV2", "QueueDequeueV2",
      "QueueEnqueueV2", "QueueIsClosedV2", "QueueSizeV2", "SleepDataset", "Stage", "StageClear", "StagePeek",
      "StageSize", "Unstage", "UnwrapDatasetVariant", "WrapDatasetVariant"};
  return names;
}

const Names& names_of_forwarders() {
  static const Names& names = *new Names{"Abs",           "Add",
                                         "AddN",          "AddV2",
                                         "BiasAdd",       "Cast",
                                         "Ceil",          "Cos",
                                         "Div",           "DivNoNan",
                                         "Elu",           "EluGrad",
                                         "Erf",           "Exp",
                                         "Expm1",         "Floor",
                                         "FloorDiv",      "Inv",
                                         "InvGrad",       "LeakyRelu",
                                         "LeakyReluGrad", "Log",
                                         "Log1p",         "LogicalAnd",
                                         "LogicalNot",    "LogicalOr",
                                         "LogSoftmax",    "Maximum",
                                         "Minimum",       "Mul",
                                         "MulNoNan",      "Neg",
                                         "Pow",           "RealDiv",
                                         "Reciprocal",    "ReciprocalGrad",
                                         "Relu",          "Relu6",
                                         "Relu6Grad",     "ReluGrad",
                                         "Round",         "Rsqrt",
                                         "RsqrtGrad",     "Select",
                                         "SelectV2",      "Selu",
                                         "SeluGrad",      "Sigmoid",
                                         "SigmoidGrad",   "Sign",
                                         "Sin",           "Softmax",
                                         "Softplus",      "SoftplusGrad",
                                         "Sqrt",          "SqrtGrad",
                                         "Square",        "SquaredDifference",
                                         "Sub",           "Tan",
                                         "Tanh",          "TanhGrad",
                                         "Xdivy",         "ZerosLike",
                                         "OnesLike"};
  return names;
}

}  // namespace

bool stays(const std::string& operation) { return names_of_handlers().count(operation) != 0; }

bool may_forward(const std::string& operation) { return names_of_forwarders().count(operation) != 0; }

bool is_in_place(const std::string& operation) {
  static const Names& names = *new Names{"InplaceAdd", "InplaceSub", "InplaceUpdate"};
  return names.count(operation) != 0;
}

bool is_compiled(const std::string& operation) {
  return operation.compare(0, 3, "Xla") == 0 || operation.compare(0, 4, "_Xla") == 0;
}

}  // namespace stand_in
