package io.idalloc.examples;

import java.nio.file.Path;

/** The options of the command line. */
record Options(String server, Path ca, Path tokenFile, String sequence, long total, Path log) {
  static final String USAGE =
      "usage: [--server HOST:PORT] [--ca FILE] [--token-file FILE] [--sequence NAME] [--total N]"
          + " [--log FILE.jsonl]";

  /**
   * @throws IllegalArgumentException an option is unknown or its value is invalid
   */
  static Options parse(String[] args) {
    String server = "127.0.0.1:50051";
    Path ca = null;
    Path tokenFile = null;
    String sequence = "orders";
    long total = 100_000;
    Path log = null;
    for (int i = 0; i < args.length; i += 2) {
      if (i + 1 == args.length) {
        throw new IllegalArgumentException("option '" + args[i] + "' is unknown or has no value");
      }
      String value = args[i + 1];
      switch (args[i]) {
        case "--server" -> server = value;
        case "--ca" -> ca = Path.of(value);
        case "--token-file" -> tokenFile = Path.of(value);
        case "--sequence" -> sequence = value;
        case "--total" -> total = parseTotal(value);
        case "--log" -> log = parseLog(value);
        default -> throw new IllegalArgumentException("unknown option '" + args[i] + "'");
      }
    }
    return new Options(server, ca, tokenFile, sequence, total, log);
  }

  private static long parseTotal(String value) {
    long total = 0;
    try {
      total = Long.parseLong(value);
    } catch (NumberFormatException e) {
      // Reported below.
    }
    if (total < 1) {
      throw new IllegalArgumentException("--total must be a number of at least 1, not " + value);
    }
    return total;
  }

  private static Path parseLog(String value) {
    if (!value.endsWith(".jsonl")) {
      throw new IllegalArgumentException("--log must be a file name with .jsonl, not " + value);
    }
    return Path.of(value);
  }
}
