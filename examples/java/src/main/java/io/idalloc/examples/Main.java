package io.idalloc.examples;
final class Main { public static void main(String[] a) {} }
