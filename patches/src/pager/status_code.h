// What a call of the C interface may return. Plain C, as lms.h.
#ifndef LMS_STATUS_CODE_H
#define LMS_STATUS_CODE_H

typedef enum lms_status {
  LMS_OK = 0,
  LMS_INVALID_ARGUMENT = 1,  // an option or a name is wrong; nothing changed
  LMS_OUT_OF_MEMORY = 2,     // no room under the limit (strict), in the address space, or on the machine
  LMS_STORE_FAILED = 3,      // the host store could not be created or written
  LMS_UNSUPPORTED = 4,       // this machine, or this state of the pager, cannot do that
  LMS_DEVICE_FAILED = 5,     // the device reports an error, or is lost
  LMS_READ_FAILED = 6        // the host store does not give back what was written to it
} lms_status;

#endif  // LMS_STATUS_CODE_H
