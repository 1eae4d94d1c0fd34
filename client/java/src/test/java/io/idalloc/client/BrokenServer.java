package io.idalloc.client;

import com.google.gson.annotations.SerializedName;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/** A server whose first connections break. Others reach a FakeServer. */
final class BrokenServer implements AutoCloseable {
  /** A row of broken_transports.json. */
  record Fault(String name, String when, @SerializedName("do") String what, int code, String text) {}

  private static final int HEADERS = 1;
  private static final int RST_STREAM = 3;
  private static final int SETTINGS = 4;
  private static final int GOAWAY = 7;

  private final Fault fault;
  private final int broken;
  private final int port; // of the FakeServer
  private final ServerSocket listener;
  private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
  final AtomicInteger connections = new AtomicInteger();
  /** How many connections forward nothing, as those of a server that was stopped. */
  volatile int hung;

  BrokenServer(Fault fault, int broken, int port, String host, int listened) throws IOException {
    this.fault = fault;
    this.broken = broken;
    this.port = port;
    this.listener = new ServerSocket(listened, 50, InetAddress.getByName(host));
    start(this::accept);
  }

  int listened() {
    return listener.getLocalPort();
  }

  String address() {
    return listener.getInetAddress().getHostAddress() + ":" + listened();
  }

  @Override
  public void close() throws IOException {
    listener.close();
    for (Socket each : sockets) {
      each.close();
    }
  }

  /** Runs a task until it ends, or the other side closes its socket. */
  private static void start(Callable<Void> task) {
    new Thread(new FutureTask<>(task)).start();
  }

  private Void accept() throws IOException {
    while (true) {
      Socket socket = listener.accept();
      sockets.add(socket);
      int number = connections.incrementAndGet();
      if (number <= broken) {
        start(() -> breakDown(socket));
      } else {
        Socket server = new Socket(InetAddress.getLoopbackAddress(), port);
        start(() -> copy(server, socket, number));
        start(() -> copy(socket, server, number));
      }
    }
  }

  private Void copy(Socket from, Socket to, int number) throws IOException {
    byte[] buffer = new byte[65_536];
    try (from;
        to) {
      for (int read; (read = from.getInputStream().read(buffer)) > 0; ) {
        while (number <= hung) {
          LockSupport.parkNanos(1_000_000);
        }
        to.getOutputStream().write(buffer, 0, read);
      }
      return null;
    }
  }

  private Void breakDown(Socket socket) throws IOException {
    try (socket) {
      DataInputStream in = new DataInputStream(socket.getInputStream());
      OutputStream out = socket.getOutputStream();
      if (fault.what.equals("text")) {
        out.write(fault.text.getBytes(StandardCharsets.US_ASCII));
        in.readAllBytes();
        return null;
      }
      out.write(frame(SETTINGS, 0));
      if (fault.when.equals("connection")) {
        act(socket, 0);
      }
      in.readNBytes(24); // the preface
      while (true) {
        int head = in.readInt();
        in.readByte(); // the flags
        int stream = in.readInt();
        in.readNBytes(head >>> 8);
        if ((head & 0xff) == HEADERS && fault.when.equals("call")) {
          act(socket, stream);
          if (broken < Integer.MAX_VALUE) {
            socket.shutdownInput(); // a reset stream leaves the connection open
          }
        }
      }
    }
  }

  private void act(Socket socket, int stream) throws IOException {
    OutputStream out = socket.getOutputStream();
    switch (fault.what) {
      case "close" -> socket.close();
      case "reset" -> {
        socket.setSoLinger(true, 0);
        socket.close();
      }
      case "goaway" -> out.write(frame(GOAWAY, 0, 0, fault.code));
      default -> out.write(frame(RST_STREAM, stream, fault.code));
    }
  }

  private static byte[] frame(int kind, int stream, int... payload) {
    ByteBuffer frame = ByteBuffer.allocate(9 + 4 * payload.length);
    frame.putInt(4 * payload.length << 8 | kind).put((byte) 0).putInt(stream);
    frame.asIntBuffer().put(payload);
    return frame.array();
  }
}
