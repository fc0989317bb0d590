// What a limit is about, for lms.h and pager.h.
#ifndef LMS_LIMIT_KIND_H
#define LMS_LIMIT_KIND_H

typedef enum lms_limit_kind {
  LMS_LIMIT_MANAGED = 0,  // resident blocks and cached free pages
  // These, and what the framework's own allocator has reserved of the device, where the pager was told whom to ask. One
  // above the device's memory means all of it.
  LMS_LIMIT_TOTAL = 1,
  // As little as will do: like the first, and where operations need more, the limit is that from then on.
  LMS_LIMIT_LEAST = 2,
  // What the machine and the process's control groups leave of their memory, as it changes; on the host backend only.
  // What the limit's number says does not count. Without a store, $TMPDIR, /var/tmp, /tmp or the current folder is one,
  // the first that is on a disk.
  LMS_LIMIT_AUTO = 3
} lms_limit_kind;

#endif  // LMS_LIMIT_KIND_H
