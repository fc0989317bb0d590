// CPU functions for operators that the CPU does not have, or computes otherwise: libraries' operators and fused ones.
// Each does what a program that runs on the CPU does in that place, so that results are the same to the bit.
#ifndef ADAPTERS_H
#define ADAPTERS_H

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace operators {

// Takes the operator's arguments, on the CPU; returns its results, on the CPU.
using Adapter = std::vector<at::Tensor> (*)(const torch::jit::Stack& arguments);

// Draws the random numbers that the operator needs, when it is called. They become one more argument, the last.
using Draw = at::Tensor (*)(const torch::jit::Stack& arguments, const at::Generator& generator);

struct Adapted {
  Adapter run;
  Draw draw;  // null: it needs none
};

// Null where the CPU's own operator is what is wanted.
const Adapted* adapted(const std::string& name);

// Lets scaled_dot_product_attention choose between its ways as it does on a CPU.
void choose_attention_as_on_cpu();

}  // namespace operators

#endif  // ADAPTERS_H
