// The program.
#include "cli/command_line.h"
#include "cli/process.h"

int main(int argc, char** argv) {
  tandem::cli::prepare_process();
  return tandem::cli::run_command_line(argc, argv);
}
