// A library that a program loads after the pager has looked at all others.
#include <unistd.h>

extern "C" {

// By a call.
__attribute__((visibility("default"))) long later_write(int file, const void* from, unsigned long bytes) {
  return write(file, from, bytes);
}

// By a pointer that lies in data.
__attribute__((visibility("default"))) long (*later_read)(int, void*, unsigned long) = read;
}
