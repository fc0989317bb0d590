// The shapes, strides and types of an operator's results, from its meta kernel. Meta kernels are Python more often than
// not, and a training step asks the same again and again, so answers are kept.
#ifndef GEOMETRY_H
#define GEOMETRY_H

#include <ATen/core/stack.h>

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace operators {

// The answers for one operator. Thread-safe.
class Geometry {
 public:
  using Stack = torch::jit::Stack;

  struct Answer {
    Stack arguments;  // those without memory, of which out= may have been resized
    Stack results;
  };

  // compute() is called where the answer is not known.
  Answer of(const Stack& arguments, const std::function<Answer()>& compute);

 private:
  std::mutex lock_;
  std::unordered_map<std::string, Answer> known_;
};

}  // namespace operators

#endif  // GEOMETRY_H
