import java.lang.reflect.Constructor;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import org.opensearch.Version;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.plugins.PluginInfo;
import org.opensearch.transport.TransportService;

/**
 * OsNode HOME [PLUGIN...] SETTING=VALUE...: one OpenSearch node, with more plugins by their classes. It prints its
 * ports, and ends with its standard input.
 */
public class OsNode {
  static final String[] PLUGINS_2 = {"org.opensearch.painless.PainlessPlugin", "org.opensearch.transport.Netty4Plugin"};
  static final String[] PLUGINS_3 = {
    "org.opensearch.painless.PainlessModulePlugin", "org.opensearch.transport.Netty4ModulePlugin"
  };

  public static void main(String[] arguments) throws Exception {
    Path home = Paths.get(arguments[0]);
    Files.createDirectories(home.resolve("config"));
    Settings.Builder settings = Settings.builder().put("path.home", home.toString());
    List<String> plugins = new ArrayList<>(Arrays.asList(Version.CURRENT.major < 3 ? PLUGINS_2 : PLUGINS_3));
    for (int i = 1; i < arguments.length; i++) {
      String[] setting = arguments[i].split("=", 2);
      if (setting.length == 1) {
        plugins.add(setting[0]);
      } else {
        settings.put(setting[0], setting[1]);
      }
    }
    Environment environment =
        InternalSettingsPreparer.prepareEnvironment(
            settings.build(), Collections.emptyMap(), home.resolve("config"), () -> "node");
    // The erasure of its arguments is the same in all versions; up to version 2 the plugins are classes.
    Constructor<Node> make = Node.class.getDeclaredConstructor(Environment.class, Collection.class, boolean.class);
    make.setAccessible(true);
    Node node = make.newInstance(environment, loaded(plugins), false);
    node.start();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> close(node)));
    int http = node.injector().getInstance(HttpServerTransport.class).boundAddress().publishAddress().getPort();
    int transport = node.injector().getInstance(TransportService.class).boundAddress().publishAddress().getPort();
    System.out.println("PORTS " + http + " " + transport);
    while (System.in.read() != -1) {}
    System.exit(0);
  }

  static List<Object> loaded(List<String> names) throws Exception {
    List<Object> plugins = new ArrayList<>();
    for (String name : names) {
      Class<? extends Plugin> plugin = Class.forName(name).asSubclass(Plugin.class);
      if (Version.CURRENT.major < 3) {
        plugins.add(plugin);
      } else {
        plugins.add(
            new PluginInfo(name, "", "", Version.CURRENT, "21", name, null, Collections.emptyList(), false));
      }
    }
    return plugins;
  }

  static void close(Node node) {
    try {
      node.close();
    } catch (Exception e) {
      e.printStackTrace();
    }
  }
}
