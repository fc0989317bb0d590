// What a kernel would cost a device: the arithmetic of the operators that have more of it than of memory traffic, and
// the bytes that it touches. The formulas are those of the operators' definitions: a product of an m x k and a k x n
// matrix is 2 m n k FLOP, a convolution the product of its weights and of its output's positions.
#ifndef COST_H
#define COST_H

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "operands.h"

namespace operators {

// FLOP of an operator by its name, with its arguments and results (of which only the geometry counts). 0 for all whose
// time is that of the memory.
double flop_of(const std::string& name, const torch::jit::Stack& arguments, const std::vector<at::Tensor>& results);

// The name that a machine's file has for the speed of the operator's arithmetic.
const char* peak_of(const std::string& name, const torch::jit::Stack& arguments);

// Bytes that a kernel with these operands reads and writes: each of them once, but where an operator picks elements of
// a table, those.
std::uint64_t bytes_of(const std::string& name, const std::vector<Span>& spans);

}  // namespace operators

#endif  // COST_H
