# Included before the first project() of a tree from Debian (`--source debian`), whose patches are for libraries in the
# system's folder, with versions in their names. Those of a wheel lie beside each other, and a wheel holds no links.
set(HAVE_SOVERSION OFF CACHE BOOL "Whether to add SOVERSION to the shared objects")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath,'$ORIGIN'")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath,'$ORIGIN/../lib'")
