# The module that calls the binary's operators in C++ (core/host). It is no part of the binary: it
# uses torch's own C++ and Python's, so its file is named after both, and others do not look at it.
option(FUSELINE_HOST "Build the module of eager calls for this torch and this Python" ON)
# Those whose headers it was compiled with; the next one's may differ.
set(HOST_TORCH_BEFORE 2.14)
find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
if(NOT FUSELINE_HOST)
  set(why "FUSELINE_HOST is off")
elseif(NOT Python_Development.Module_FOUND)
  set(why "this Python has no headers")
elseif(NOT TORCH_VERSION VERSION_LESS HOST_TORCH_BEFORE)
  set(why "torch is ${TORCH_VERSION}, and the module was tried with those before ${HOST_TORCH_BEFORE}")
endif()
if(why)
  message(STATUS "fuseline: eager calls go through Python: ${why}")
  return()
endif()

file(GLOB HOST_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/fuseline/core/host/*.cpp)
add_library(fuseline_host MODULE ${HOST_SOURCES})
set_target_properties(fuseline_host PROPERTIES
  PREFIX "" OUTPUT_NAME "_host-torch${TORCH_VERSION}" SUFFIX ".${Python_SOABI}.so" CXX_STANDARD 20
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON SKIP_BUILD_RPATH ON)
target_include_directories(fuseline_host PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(fuseline_host SYSTEM PRIVATE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include ${Python_INCLUDE_DIRS})
target_compile_options(fuseline_host PRIVATE
  -O2 -Wall -Wextra -Wno-missing-field-initializers
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}/src/=)
target_link_libraries(fuseline_host PRIVATE
  ${TORCH_DIR}/lib/libtorch_python.so ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
install(TARGETS fuseline_host LIBRARY DESTINATION fuseline)
