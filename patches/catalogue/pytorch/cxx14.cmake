# Makes a build that sets CMAKE_CXX_STANDARD to 11 compile C++14. To be named by CMAKE_TOOLCHAIN_FILE, which CMake takes from
# the environment from 3.21 on; the framework's setup.py, from 1.2 on, hands it to older ones.

# CMake reads this file again here, after it has found out what the compiler's options are.
set(CMAKE_USER_MAKE_RULES_OVERRIDE_CXX "${CMAKE_CURRENT_LIST_FILE}")

set(CMAKE_CXX11_STANDARD_COMPILE_OPTION "-std=c++14")
set(CMAKE_CXX11_EXTENSION_COMPILE_OPTION "-std=gnu++14")
