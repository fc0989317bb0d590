// Marks what the pager's library exports. Plain C, as lms.h.
#ifndef LMS_API_H
#define LMS_API_H

#if defined(__GNUC__)
#define LMS_API __attribute__((visibility("default")))
#else
#define LMS_API
#endif

#endif  // LMS_API_H
