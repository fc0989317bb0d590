// Recurrent networks, which the wheel leaves to cuDNN on a device: computed as on the CPU, of operators that autograd
// sees.
#ifndef RECURRENT_H
#define RECURRENT_H

namespace operators {

// Packed sequences are refused.
void run_recurrent_networks_as_on_cpu();

}  // namespace operators

#endif  // RECURRENT_H
