# The frameworks' glue for editors: with the headers of an installed wheel every #include of it resolves, from the C functions
# that Python calls down to the backends. pager/CMakeLists.txt includes this. Nothing here is linked: lmsbuild builds the
# libraries.
#
#   cmake --preset plain -DTORCH_WHEEL=/path/to/site-packages/torch
set(TORCH_WHEEL "" CACHE PATH "The folder torch of an installed wheel: adds PyTorch's glue to compile_commands.json")
set(TENSORFLOW_WHEEL "" CACHE PATH "The folder tensorflow of one: adds TensorFlow's")
set(CUDA_INCLUDE "" CACHE PATH "The folder of cuda_runtime_api.h: adds what is for CUDA")

function(check_folder name file)
  if(${name} AND NOT EXISTS "${${name}}/${file}")
    message(FATAL_ERROR "-D${name}=${${name}}: give the folder that has ${file}, of an unpacked or installed package")
  endif()
endfunction()
check_folder(TORCH_WHEEL include/ATen/ATen.h)
check_folder(TENSORFLOW_WHEEL include)
check_folder(CUDA_INCLUDE cuda_runtime_api.h)

# Where the pager lies in the patched trees.
set(overlay ${CMAKE_BINARY_DIR}/overlay)
foreach(place ATen/lms tensorflow/core/common_runtime/lms/pager)
  cmake_path(GET place PARENT_PATH folder)
  file(MAKE_DIRECTORY ${overlay}/${folder})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${overlay}/${place} SYMBOLIC)
endforeach()

function(add_glue name root wheel standard)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  target_include_directories(${name} PRIVATE ${overlay} ${root})
  target_include_directories(${name} SYSTEM PRIVATE ${wheel}/include ${CUDA_INCLUDE})
  target_compile_definitions(${name} PRIVATE NDEBUG)
  target_compile_options(${name} PRIVATE -Wno-error)  # an editor's compiler warns of other things than ours
  set_target_properties(${name} PROPERTIES CXX_STANDARD ${standard})
endfunction()

if(TORCH_WHEEL)
  set(root ${CMAKE_CURRENT_SOURCE_DIR}/../pytorch/aten/src)
  file(GLOB sources CONFIGURE_DEPENDS ${root}/ATen/*.cpp)
  if(CUDA_INCLUDE)
    file(GLOB cuda CONFIGURE_DEPENDS ${root}/ATen/cuda/*.cpp)
    # Since 2.0 the CUDA allocator is an interface.
    file(STRINGS ${TORCH_WHEEL}/include/c10/cuda/CUDACachingAllocator.h interface REGEX "class CUDAAllocator")
    if(interface)
      list(FILTER cuda EXCLUDE REGEX "/LmsAllocatorObject.cpp$")
    else()
      list(FILTER cuda EXCLUDE REGEX "/LmsAllocatorInterface.cpp$")
    endif()
    list(APPEND sources ${cuda})
  endif()
  file(STRINGS ${TORCH_WHEEL}/share/cmake/Torch/TorchConfig.cmake line REGEX "CXX_STANDARD |cxx_std_" LIMIT_COUNT 1)
  string(REGEX MATCH "(CXX_STANDARD |cxx_std_)([0-9]+)" line "${line}")
  add_glue(torch_glue ${root} ${TORCH_WHEEL} ${CMAKE_MATCH_2} ${sources})
  target_include_directories(torch_glue SYSTEM PRIVATE ${TORCH_WHEEL}/include/torch/csrc/api/include)
endif()

if(TENSORFLOW_WHEEL)
  set(root ${CMAKE_CURRENT_SOURCE_DIR}/../tensorflow)
  file(GLOB sources CONFIGURE_DEPENDS ${root}/tensorflow/core/common_runtime/lms/*.cc)
  if(NOT CUDA_INCLUDE)
    list(FILTER sources EXCLUDE REGEX "/lms_gpu_[a-z]+.cc$")
  endif()
  add_glue(tensorflow_glue ${root} ${TENSORFLOW_WHEEL} 17 ${sources})
  target_compile_definitions(tensorflow_glue PRIVATE EIGEN_MAX_ALIGN_BYTES=64 $<$<BOOL:${CUDA_INCLUDE}>:GOOGLE_CUDA=1>)
endif()
