// Random numbers: what a CUDA generator would draw is drawn from a CPU generator, so that a program draws the same
// numbers on the CPU and on the device.
//
// A CUDA generator's draws are those of a CPU generator with its seed. The default ones share the CPU's default
// generator as long as they have its seed, as they do after torch.manual_seed(); so threads that draw on several
// devices at once share it too. The state of a CUDA generator (seed, offset) names a place in such a sequence of
// numbers: who restores an earlier state draws the same numbers again.
#ifndef GENERATORS_H
#define GENERATORS_H

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <functional>

namespace operators {

// Calls draw(generator) with the CPU generator for the device's generator, which is the device's default one where it
// is undefined. Thread-safe; one draw at a time.
void with_cpu_generator(at::Generator generator, at::Device device, const std::function<void(at::Generator)>& draw);

}  // namespace operators

#endif  // GENERATORS_H
