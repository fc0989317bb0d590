// The CUresult values that the simulation returns; cudaError_t has the same numbers.
#ifndef SIM_CODES_H
#define SIM_CODES_H

namespace sim {

enum Code {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  insufficient_driver = 35,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  already_mapped = 208,
  peer_unsupported = 217,
  operating_system = 304,
  invalid_handle = 400,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  peer_already_enabled = 704,
  peer_not_enabled = 705,
  already_registered = 712,
  not_registered = 713,
  not_permitted = 800,
  not_supported = 801,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_merge = 902,
  capture_unmatched = 903,
  capture_unjoined = 904,
  capture_isolation = 905,
  capture_implicit = 906,
  captured_event = 907,
  capture_wrong_thread = 908,
  unknown_error = 999,
};

__attribute__((visibility("default"))) const char* code_name(int code);
__attribute__((visibility("default"))) const char* code_sentence(int code);

}  // namespace sim
#endif  // SIM_CODES_H
