#include "generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/equal.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace operators {

namespace {

using Place = std::pair<std::uint64_t, std::uint64_t>;  // seed and offset of a CUDA generator

// A sequence of numbers, and the place of its next one.
struct Sequence {
  at::Generator generator;
  Place next;
};

// The generator as it was when its next number was the one at a place.
struct Visit {
  std::shared_ptr<Sequence> sequence;
  at::Tensor state;
};

using Visits = std::map<Place, Visit>;  // of one CUDA generator

constexpr std::uint64_t step = 4;  // offsets are multiples of it
constexpr std::size_t most_visits = 4096;  // 5 KiB each

std::shared_ptr<Sequence> find(const Visits& visits, const Place& place, bool is_default) {
  const at::Generator usual = at::detail::getDefaultCPUGenerator();
  if (const auto visit = visits.find(place); visit != visits.end()) {
    if (visit->second.sequence->next == place) {
      return visit->second.sequence;
    }
    const auto last = visits.find(visit->second.sequence->next);
    // Where the CPU's generator is as the last draw left it, the seed was not set again: a state was restored.
    const bool restored = last != visits.end() && at::equal(last->second.state, usual.get_state());
    if (place.second != 0 || !is_default || usual.current_seed() != place.first || restored) {
      auto again = std::make_shared<Sequence>();
      again->generator = at::make_generator<at::CPUGeneratorImpl>(place.first);
      again->generator.set_state(visit->second.state);
      return again;
    }
  }
  auto fresh = std::make_shared<Sequence>();
  fresh->generator =
      is_default && usual.current_seed() == place.first ? usual : at::make_generator<at::CPUGeneratorImpl>(place.first);
  return fresh;
}

}  // namespace

void with_cpu_generator(at::Generator generator, at::Device device, const std::function<void(at::Generator)>& draw) {
  static auto& lock = *new std::mutex;
  // Generators are held: another at the address of one that is gone would find its visits.
  static auto& all = *new std::map<c10::GeneratorImpl*, std::pair<at::Generator, Visits>>;
  const at::Generator& usual = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  if (!generator.defined()) {
    generator = usual;
  }
  auto* const own = at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard<std::mutex> guard(lock);
  auto& [held, visits] = all[own];
  held = generator;
  const Place place{own->current_seed(), own->philox_offset_per_thread()};
  const std::shared_ptr<Sequence> sequence = find(visits, place, generator == usual);
  visits[place] = {sequence, sequence->generator.get_state()};
  draw(sequence->generator);
  sequence->next = {place.first, place.second + step};
  visits[sequence->next] = {sequence, sequence->generator.get_state()};
  if (visits.size() > most_visits) {
    visits.erase(visits.begin());
  }
  own->set_philox_offset_per_thread(sequence->next.second);
}

}  // namespace operators
