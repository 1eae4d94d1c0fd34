import com.mysql.cj.xdevapi.SessionFactory;

/** Add three documents, and print the ids that the server made. */
class Add {
    public static void main(String[] arguments) {
        var uri = System.getenv().getOrDefault("MYSQLX_URI", "mysqlx://shop:any@127.0.0.1:33060?xdevapi.ssl-mode=DISABLED");
        var session = new SessionFactory().getSession(uri);
        var schema = session.createSchema("shop", true);
        var orders = schema.createCollection("orders", true);
        var added = orders.add("{\"what\": \"tea\"}", "{\"what\": \"milk\"}", "{\"what\": \"sugar\"}").execute();
        for (var docId : added.getGeneratedIds()) {
            System.out.println(docId);
        }
        session.close();
    }
}
