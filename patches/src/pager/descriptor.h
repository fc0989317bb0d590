// Descriptors of LMS's own in the program's process.
#ifndef LMS_DESCRIPTOR_H
#define LMS_DESCRIPTOR_H

namespace lms {

// Gives the file another number that programs leave alone: one that closes all it sees, and opens others, does not get
// our number soon. Returns it, or `file` where the system refuses.
int out_of_the_way(int file);

}  // namespace lms
#endif  // LMS_DESCRIPTOR_H
