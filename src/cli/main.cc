// The program.
#include "cli/command_line.h"

int main(int argc, char** argv) { return tandem::cli::run_command_line(argc, argv); }
