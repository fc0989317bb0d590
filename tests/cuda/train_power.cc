// Trains a small model in C++, without LMS and then in a third of the memory that it takes; prints what it paged out.
#include <ATen/LmsCpu.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint64_t min_size = 1 << 16;  // bytes: whole pages
constexpr int64_t width = 128;

void require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "%s: %s\n", what, lms_last_error());
    std::exit(1);
  }
}

void enable(uint64_t limit) {
  lms_options options = {};
  options.struct_size = sizeof options;
  options.limit = limit;
  options.address_space = uint64_t{4} << 30;  // an emulator keeps a table of all of it
  require(lms_torch_cpu_enable(&options, min_size) == LMS_OK, "enable");
}

uint64_t statistic(const char* name) {
  for (size_t index = 0; lms_statistic_name(index) != nullptr; ++index) {
    if (std::strcmp(lms_statistic_name(index), name) == 0) {
      std::vector<uint64_t> values(index + 1);
      lms_statistics(lms_torch_cpu_pager(), values.data(), values.size());
      return values[index];
    }
  }
  require(false, name);
  return 0;
}

std::vector<float> train() {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int layer = 0; layer < 8; ++layer) {
    model->push_back(torch::nn::Linear(width, width));
    model->push_back(torch::nn::ReLU());
  }
  torch::optim::Adam optimizer(model->parameters());
  std::vector<float> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model->forward(torch::ones({16, width})).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  const std::vector<float> stock = train();
  enable(uint64_t{1} << 40);
  train();
  const uint64_t limit = statistic("allocated_bytes.peak") / 3;
  require(lms_torch_cpu_disable() == LMS_OK, "disable");
  enable(limit);
  const std::vector<float> limited = train();
  const uint64_t out = statistic("out.bytes");
  require(lms_torch_cpu_disable() == LMS_OK, "disable");
  require(
      limited.size() == stock.size() && std::memcmp(limited.data(), stock.data(), stock.size() * sizeof(float)) == 0,
      "the losses differ");
  require(out > 0, "nothing was paged out");
  std::printf("limit %llu, out %llu, loss %a\n", static_cast<unsigned long long>(limit),
              static_cast<unsigned long long>(out), static_cast<double>(limited.back()));
  return 0;
}
