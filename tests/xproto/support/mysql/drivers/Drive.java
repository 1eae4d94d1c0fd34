// Runs the scenarios with MySQL's Java client, and prints a line of JSON for each step.
// usage: java -cp CLASSPATH Drive.java --port PORT --scenarios FILE [--only NAME] > answers.jsonl
import com.mysql.cj.xdevapi.*;
import java.io.*; import java.nio.charset.StandardCharsets; import java.nio.file.*; import java.util.*;

public class Drive {
    static Map<String, String> args = new HashMap<>();
    Map<String, Session> sessions = new HashMap<>();
    List<String> ids = new ArrayList<>();
    static String str(DbDoc s, String k) { return s.containsKey(k) ? ((JsonString) s.get(k)).getString() : null; }
    static String str(DbDoc s, String k, String d) { return s.containsKey(k) ? str(s, k) : d; }
    static Integer num(DbDoc s, String k) { return s.containsKey(k) ? ((JsonNumber) s.get(k)).getInteger() : null; }
    static boolean flag(DbDoc s, String k) { return s.get(k) == JsonLiteral.TRUE; }
    static String[] strs(DbDoc s, String k) { return ((JsonArray) s.get(k)).stream().map(v -> ((JsonString) v).getString()).toArray(String[]::new); }
    String id(String v) { return v.startsWith("$id:") ? ids.get(Integer.parseInt(v.substring(4)) - 1) : v; }
    JsonValue fill(JsonValue v) {
        if (v instanceof JsonString x && x.getString().startsWith("$id:")) return new JsonString().setValue(id(x.getString()));
        if (v instanceof JsonArray a) { JsonArray o = new JsonArray(); for (JsonValue x : a) o.addValue(fill(x)); return o; }
        if (v instanceof DbDoc d) { DbDoc o = new DbDocImpl(); for (var e : d.entrySet()) o.put(e.getKey(), fill(e.getValue())); return o; }
        return v;
    }
    Object plain(JsonValue v) {
        v = fill(v);
        if (v instanceof JsonString x) return x.getString();
        if (v instanceof JsonNumber n) { var b = n.getBigDecimal(); return b.scale() <= 0 ? (Object) b.longValue() : (Object) b.doubleValue(); }
        if (v == JsonLiteral.TRUE) return true;
        if (v == JsonLiteral.FALSE) return false;
        if (v == JsonLiteral.NULL) return null;
        return v;
    }
    Session session(DbDoc s) { return sessions.get(str(s, "as", "s")); }
    Schema schema(DbDoc s) { return session(s).getSchema(str(s, "schema", "conf")); }
    com.mysql.cj.xdevapi.Collection collection(DbDoc s) { return schema(s).getCollection(str(s, "collection", "c")); }
    static String uri(DbDoc o, String schema) {
        String tls = flag(o, "tls") ? "REQUIRED" : "DISABLED";
        String u = "mysqlx://" + str(o, "user", args.getOrDefault("user", "x")) + ":" + str(o, "password", args.getOrDefault("password", "x")) + "@" + args.getOrDefault("host", "127.0.0.1") + ":" + args.get("port") + "/" + (schema == null ? "" : schema);
        u += "?xdevapi.ssl-mode=" + tls + "&xdevapi.compression=" + str(o, "compression", "DISABLED");
        if (o.containsKey("auth")) u += "&xdevapi.auth=" + str(o, "auth");
        if (o.containsKey("algorithms")) u += "&xdevapi.compression-algorithms=" + str(o, "algorithms");
        return u;
    }
    static String q(String s) { JsonString j = new JsonString(); j.setValue(s); return j.toString(); }
    static String q(List<String> l) { return "[" + String.join(", ", l.stream().map(Drive::q).toList()) + "]"; }
    static String warnings(com.mysql.cj.xdevapi.Result r) {
        if (r.getWarningsCount() == 0) return "";
        List<String> w = new ArrayList<>(); var i = r.getWarnings();
        while (i.hasNext()) { var x = i.next(); w.add("[" + x.getCode() + ", " + q(x.getMessage()) + "]"); }
        return ", \"warnings\": [" + String.join(", ", w) + "]";
    }
    String wrote(com.mysql.cj.xdevapi.Result r) { return "{\"affected\": " + r.getAffectedItemsCount() + warnings(r) + "}"; }
    String wrote(AddResult r) {
        List<String> l = r.getGeneratedIds(); ids.addAll(l);
        return "{\"affected\": " + r.getAffectedItemsCount() + ", \"ids\": " + q(l) + warnings(r) + "}";
    }
    static String docs(DocResult r) { List<String> l = new ArrayList<>(); for (DbDoc d : r.fetchAll()) l.add(d.toString()); return "[" + String.join(", ", l) + "]"; }
    void bind(Statement<?, ?> q, DbDoc s) {
        if (!s.containsKey("bind")) return;
        Map<String, Object> m = new HashMap<>();
        for (var e : ((DbDoc) s.get("bind")).entrySet()) m.put(e.getKey(), plain(e.getValue()));
        q.bind(m);
    }
    interface Put { void put(String path, Object value); }
    void each(DbDoc s, String k, Put p) { if (s.containsKey(k)) for (var e : ((DbDoc) s.get(k)).entrySet()) p.put(e.getKey(), plain(e.getValue())); }
    String run(DbDoc s) {
        String op = str(s, "op");
        switch (op) {
            case "connect": {
                DbDoc o = JsonParser.parseDoc(args.getOrDefault("options", "{}"));
                if (s.containsKey("options")) o.putAll((DbDoc) s.get("options"));
                sessions.put(str(s, "as", "s"), new SessionFactory().getSession(uri(o, str(o, "schema")))); return "\"connected\"";
            }
            case "close": session(s).close(); return "\"closed\"";
            case "create_schema": session(s).createSchema(str(s, "name")); return "\"ok\"";
            case "drop_schema":
                // In a scenario's setup it may be missing, which only this client reports.
                if (s.containsKey("ensure")) session(s).createSchema(str(s, "name"), true);
                session(s).dropSchema(str(s, "name"));
                return "\"ok\"";
            case "get_schemas": return q(session(s).getSchemas().stream().map(Schema::getName).filter(x -> x.startsWith("conf")).sorted().toList());
            case "schema_exists": return session(s).getSchema(str(s, "name")).existsInDatabase() == DatabaseObject.DbObjectStatus.EXISTS ? "true" : "false";
            case "create_collection": {
                if (s.containsKey("validation")) {
                    DbDoc v = (DbDoc) s.get("validation");
                    var val = new Schema.Validation(); val.setLevel(Schema.Validation.ValidationLevel.valueOf(str(v, "level").toUpperCase())); val.setSchema(v.get("schema").toString());
                    var opt = new Schema.CreateCollectionOptions(); opt.setReuseExisting(flag(s, "reuse")); opt.setValidation(val);
                    schema(s).createCollection(str(s, "name"), opt);
                } else if (s.containsKey("reuse")) schema(s).createCollection(str(s, "name"), flag(s, "reuse"));
                else schema(s).createCollection(str(s, "name"));
                return "\"ok\"";
            }
            case "drop_collection": schema(s).dropCollection(str(s, "name")); return "\"ok\"";
            case "get_collections": return q(schema(s).getCollections().stream().map(DatabaseObject::getName).sorted().toList());
            case "collection_exists": return schema(s).getCollection(str(s, "name")).existsInDatabase() == DatabaseObject.DbObjectStatus.EXISTS ? "true" : "false";
            case "add": {
                DbDoc[] a = ((JsonArray) fill(s.get("docs"))).stream().map(v -> (DbDoc) v).toArray(DbDoc[]::new);
                return wrote(collection(s).add(a).execute());
            }
            case "add_text": return wrote(collection(s).add(strs(s, "texts")).execute());
            case "add_many": {
                List<DbDoc> l = new ArrayList<>(); for (int n = 0; n < num(s, "count"); n++) l.add(JsonParser.parseDoc("{\"n\":" + n + "}"));
                AddResult r = collection(s).add(l.toArray(DbDoc[]::new)).execute();
                List<String> g = r.getGeneratedIds(); ids.addAll(g);
                return "{\"affected\": " + r.getAffectedItemsCount() + ", \"ids\": " + g.size() + ", \"rising\": " + new ArrayList<>(new TreeSet<>(g)).equals(g) + "}";
            }
            case "find": {
                FindStatement f = s.containsKey("criteria") ? collection(s).find(str(s, "criteria")) : collection(s).find();
                if (s.containsKey("fields")) f.fields(strs(s, "fields"));
                if (s.containsKey("group_by")) f.groupBy(strs(s, "group_by"));
                if (s.containsKey("having")) f.having(str(s, "having"));
                if (s.containsKey("sort")) f.sort(strs(s, "sort"));
                if (s.containsKey("limit")) f.limit(num(s, "limit"));
                if (s.containsKey("offset")) f.offset(num(s, "offset"));
                if ("shared".equals(str(s, "lock"))) f.lockShared();
                if ("exclusive".equals(str(s, "lock"))) f.lockExclusive();
                String r = null;
                for (int n = 0; n < (s.containsKey("times") ? num(s, "times") : 1); n++) { bind(f, s); r = docs(f.execute()); }
                return r;
            }
            case "modify": {
                ModifyStatement m = collection(s).modify(str(s, "criteria"));
                each(s, "set", m::set); each(s, "change", m::change); each(s, "array_append", m::arrayAppend); each(s, "array_insert", m::arrayInsert);
                each(s, "set_expr", (p, v) -> m.set(p, Expression.expr((String) v)));
                if (s.containsKey("unset")) m.unset(strs(s, "unset"));
                if (s.containsKey("patch")) m.patch((DbDoc) fill(s.get("patch")));
                if (s.containsKey("sort")) m.sort(strs(s, "sort"));
                if (s.containsKey("limit")) m.limit(num(s, "limit"));
                com.mysql.cj.xdevapi.Result r = null;
                for (int n = 0; n < (s.containsKey("times") ? num(s, "times") : 1); n++) { bind(m, s); r = m.execute(); }
                return wrote(r);
            }
            case "remove": {
                RemoveStatement m = collection(s).remove(str(s, "criteria"));
                if (s.containsKey("sort")) m.sort(strs(s, "sort"));
                if (s.containsKey("limit")) m.limit(num(s, "limit"));
                com.mysql.cj.xdevapi.Result r = null;
                for (int n = 0; n < (s.containsKey("times") ? num(s, "times") : 1); n++) { bind(m, s); r = m.execute(); }
                return wrote(r);
            }
            case "count": return "" + collection(s).count();
            case "get_one": { DbDoc d = collection(s).getOne(id(str(s, "id"))); return d == null ? "null" : d.toString(); }
            case "replace_one": return wrote(collection(s).replaceOne(id(str(s, "id")), (DbDoc) fill(s.get("doc"))));
            case "add_or_replace_one": {
                com.mysql.cj.xdevapi.Result r = collection(s).addOrReplaceOne(id(str(s, "id")), (DbDoc) fill(s.get("doc")));
                List<String> g = r instanceof AddResult a ? a.getGeneratedIds() : List.of(); ids.addAll(g);
                return "{\"affected\": " + r.getAffectedItemsCount() + ", \"ids\": " + q(g) + warnings(r) + "}";
            }
            case "remove_one": return wrote(collection(s).removeOne(id(str(s, "id"))));
            case "sql": {
                SqlStatement st = session(s).sql(str(s, "stmt"));
                if (s.containsKey("args")) for (JsonValue v : (JsonArray) s.get("args")) st.bind(plain(v));
                SqlResult r = st.execute();
                if (!r.hasData()) return wrote(r);
                List<String> names = new ArrayList<>(); for (var c : r.getColumns()) names.add(c.getColumnLabel());
                List<String> rows = new ArrayList<>();
                for (Row row : r.fetchAll()) {
                    List<String> cells = new ArrayList<>();
                    for (int n = 0; n < names.size(); n++) { String v = row.getString(n); boolean number = r.getColumns().get(n).getType() == Type.BIGINT || r.getColumns().get(n).getType() == Type.INT; cells.add(v == null ? "null" : number ? v : q(v)); }
                    rows.add("[" + String.join(", ", cells) + "]");
                }
                return "{\"rows\": [" + String.join(", ", rows) + "], \"columns\": " + q(names) + "}";
            }
            case "begin": session(s).startTransaction(); return "\"ok\"";
            case "commit": session(s).commit(); return "\"ok\"";
            case "rollback": session(s).rollback(); return "\"ok\"";
            case "savepoint": session(s).setSavepoint(str(s, "name")); return "\"ok\"";
            case "rollback_to": session(s).rollbackTo(str(s, "name")); return "\"ok\"";
            case "release": session(s).releaseSavepoint(str(s, "name")); return "\"ok\"";
            case "create_index": collection(s).createIndex(str(s, "name"), (DbDoc) s.get("index")); return "\"ok\"";
            case "drop_index": collection(s).dropIndex(str(s, "name")); return "\"ok\"";
            case "pool": {
                DbDoc o = JsonParser.parseDoc(args.getOrDefault("options", "{}"));
                if (s.containsKey("options")) o.putAll((DbDoc) s.get("options"));
                Client c = new ClientFactory().getClient(uri(o, "conf"), "{\"pooling\":{\"enabled\":true,\"maxSize\":" + (s.containsKey("size") ? num(s, "size") : 2) + "}}");
                List<String> l = new ArrayList<>();
                for (int n = 0; n < (s.containsKey("sessions") ? num(s, "sessions") : 3); n++) {
                    Session z = c.getSession(); l.add(wrote(z.getSchema("conf").getCollection("c").add("{\"pool\":" + n + "}").execute())); z.close();
                }
                c.close(); return "[" + String.join(", ", l) + "]";
            }
        }
        throw new IllegalArgumentException("unknown op " + op);
    }
    static String error(Throwable e) {
        for (Throwable t = e; t != null; t = t.getCause())
            if (t instanceof com.mysql.cj.protocol.x.XProtocolError x) {
                String m = x.getMessage();
                return "{\"error\": {\"code\": " + x.getErrorCode() + ", \"sql_state\": " + q(x.getSQLState() == null ? "" : x.getSQLState()) + ", \"message\": " + q(m.replaceFirst("^ERROR \\d+ \\(\\w+\\) ", "")) + "}}";
            }
        return "{\"error\": {\"client\": " + q(e.getClass().getSimpleName()) + ", \"text\": " + q(String.valueOf(e.getMessage())) + "}}";
    }
    public static void main(String[] a) throws Exception {
        for (int i = 0; i < a.length; i += 2) args.put(a[i].substring(2), a[i + 1]);
        PrintStream so = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        JsonArray all = JsonParser.parseArray(new StringReader(Files.readString(Path.of(args.get("scenarios")))));
        for (JsonValue v : all) {
            DbDoc sc = (DbDoc) v; String name = str(sc, "name");
            if (args.containsKey("only") && !name.startsWith(args.get("only"))) continue;
            if (sc.containsKey("skip") && List.of(strs(sc, "skip")).contains("java")) continue;
            Drive w = new Drive();
            List<JsonValue> steps = new ArrayList<>();
            if (!sc.containsKey("bare")) for (JsonValue x : JsonParser.parseArray(new StringReader("[{\"op\":\"connect\"},{\"op\":\"drop_schema\",\"name\":\"conf\",\"ensure\":true},{\"op\":\"create_schema\",\"name\":\"conf\"},{\"op\":\"create_collection\",\"name\":\"c\"}]"))) steps.add(x);
            steps.addAll((JsonArray) sc.get("steps"));
            for (int i = 0; i < steps.size(); i++) {
                DbDoc s = (DbDoc) steps.get(i); String op = str(s, "op");
                if (s.containsKey("skip") && List.of(strs(s, "skip")).contains("java")) continue;
                String r; try { r = w.run(s); } catch (Throwable e) { r = error(e); }
                r = r.replace("\n", " ");
                so.println("{\"scenario\": " + q(name) + ", \"step\": " + i + ", \"op\": " + q(op) + ", \"result\": " + r + "}");
            }
            for (Session z : w.sessions.values()) try { z.close(); } catch (Throwable e) { }
        }
        System.exit(0);
    }
}
