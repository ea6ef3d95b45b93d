// A fuzz target is one source file: it includes this header and defines `fuzz::one`, which must not crash,
// hang or read outside of what it may, whatever the input is. Built with clang and -DOCCL_LIBFUZZER it is a
// libFuzzer program (tests/fuzz/run.py); built otherwise, a program that replays files of inputs, in `make
// test`.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "fuzz/input.h"

namespace fuzz {

void one(Input& in);

}  // namespace fuzz

extern "C" inline int run_one(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  fuzz::one(in);
  return 0;
}

#ifdef OCCL_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return run_one(data, size);
}
#else
/// Replays files with one input for each line, in hexadecimal; lines that begin with '#' say where they are
/// from.
int main(int argc, char** argv) {
  int passed = 0;
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i]);
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::vector<std::uint8_t> bytes;
      for (std::size_t at = 0; at + 1 < line.size(); at += 2)
        bytes.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(at, 2), nullptr, 16)));
      run_one(bytes.data(), bytes.size());
      ++passed;
    }
  }
  std::printf("%d passed, 0 failed\n", passed);
}
#endif
