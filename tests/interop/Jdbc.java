import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.sql.*;
import java.util.*;

/** The calls of SQL tools over the Arrow Flight SQL JDBC driver; prints one line for each thing found. */
public class Jdbc {
    static void say(String key, Object value) {
        System.out.println(key + "=" + value);
    }

    static List<String> rows(ResultSet found, String... columns) throws SQLException {
        List<String> rows = new ArrayList<>();
        try (found) {
            while (found.next()) {
                StringJoiner row = new StringJoiner("|");
                for (String column : columns) row.add(String.valueOf(found.getObject(column)));
                rows.add(row.toString());
            }
        }
        return rows;
    }

    static String refusal(String what, SqlCall call) {
        try {
            call.run();
            return what + " was not refused";
        } catch (SQLException error) {
            Throwable cause = error;
            while (cause.getCause() != null) cause = cause.getCause();
            return (error.getMessage() + " / " + cause.getMessage()).replace('\n', ' ');
        }
    }

    interface SqlCall {
        void run() throws SQLException;
    }

    public static void main(String[] arguments) throws Exception {
        Properties login = new Properties();
        for (int at = 1; at + 1 < arguments.length; at += 2) login.put(arguments[at], arguments[at + 1]);
        try (Connection connection = DriverManager.getConnection(arguments[0], login)) {
            if (login.containsKey("sessions")) {
                idle(arguments[0], login);
                return;
            }
            metadata(connection.getMetaData());
            grids(connection);
            statements(connection);
        }
        say("done", true);
    }

    static void metadata(DatabaseMetaData meta) throws Exception {
        say("product", meta.getDatabaseProductName() + " " + meta.getDatabaseProductVersion());
        say("catalogs", rows(meta.getCatalogs(), "TABLE_CAT"));
        say("schemas", rows(meta.getSchemas(), "TABLE_SCHEM"));
        say("schemas like", rows(meta.getSchemas("statflight", "stats%"), "TABLE_SCHEM"));
        say("table types", rows(meta.getTableTypes(), "TABLE_TYPE"));
        say("tables", rows(meta.getTables(null, "stats", "col%", null), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE"));
        String[] types = {"BASE TABLE", "TABLE"};
        say("tables of types", rows(meta.getTables("statflight", "sys", "%", types), "TABLE_NAME"));
        say("no tables", rows(meta.getTables(null, null, "%", new String[] {"VIEW"}), "TABLE_NAME"));
        String[] columns = {"COLUMN_NAME", "TYPE_NAME", "DATA_TYPE", "ORDINAL_POSITION"};
        say("columns", rows(meta.getColumns(null, "stats", "columns", "%"), columns));
        String escape = meta.getSearchStringEscape();  // which DBeaver writes before each wildcard of a name
        say("escaped", rows(meta.getColumns(null, "stats" + escape + "_all", "column" + escape + "_groups", "%"), columns[0]));
        say("columns like", rows(meta.getColumns(null, "stats", "columns", "nd%"), columns));
        say("primary keys", rows(meta.getPrimaryKeys(null, "stats", "columns"), "COLUMN_NAME"));
        say("imported keys", rows(meta.getImportedKeys(null, "stats", "columns"), "PKCOLUMN_NAME"));
        say("exported keys", rows(meta.getExportedKeys(null, "stats", "columns"), "PKCOLUMN_NAME"));
        say("cross reference", rows(meta.getCrossReference(null, "stats", "columns", null, "stats", "tables"), "PKCOLUMN_NAME"));
        say("index info", rows(meta.getIndexInfo(null, "stats", "columns", false, true), "COLUMN_NAME"));
        say("type info", rows(meta.getTypeInfo(), "TYPE_NAME"));
        say("procedures", rows(meta.getProcedures(null, null, "%"), "PROCEDURE_NAME"));
        say("functions", rows(meta.getFunctions(null, null, "%"), "FUNCTION_NAME"));
        // tools ask for all that a driver may tell; a server that says nothing of it breaks some of them
        for (Method method : DatabaseMetaData.class.getMethods()) {
            if (method.getParameterCount() > 0 || ResultSet.class.isAssignableFrom(method.getReturnType())) continue;
            try {
                say("meta " + method.getName(), method.invoke(meta));
            } catch (InvocationTargetException error) {
                say("meta " + method.getName(), "FAILED " + error.getCause());
            }
        }
    }

    /** Reads every flight as a grid of a tool does: each value as an object and as text. */
    static void grids(Connection connection) throws SQLException {
        List<String> names = new ArrayList<>();
        try (ResultSet tables = connection.getMetaData().getTables(null, null, "%", null)) {
            while (tables.next()) names.add(tables.getString("TABLE_SCHEM") + "." + tables.getString("TABLE_NAME"));
        }
        int values = 0;
        for (String name : names) {
            try (Statement statement = connection.createStatement();
                    ResultSet found = statement.executeQuery("SELECT * FROM " + name + " LIMIT 50")) {
                ResultSetMetaData columns = found.getMetaData();
                int rows = 0;
                while (found.next()) {
                    rows++;
                    for (int at = 1; at <= columns.getColumnCount(); at++) {
                        try {
                            Object value = found.getObject(at);
                            String text = found.getString(at);
                            if ((value == null) != (text == null)) throw new SQLException(value + " / " + text);
                            values++;
                        } catch (SQLException | RuntimeException error) {
                            say("grid of " + name, columns.getColumnName(at) + " FAILED " + error);
                        }
                    }
                }
                say("rows of " + name, rows);
            }
        }
        say("values", values);
    }

    static void statements(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            say("constant", rows(statement.executeQuery("SELECT 1 AS one, 'x' AS text"), "one", "text"));
            say("select", rows(statement.executeQuery(
                "SELECT column_name, ndv FROM stats.columns WHERE table_name = 'orders' ORDER BY column_id"),
                "column_name", "ndv"));
            say("union", rows(statement.executeQuery(
                "SELECT table_name FROM stats.columns UNION SELECT 'another' ORDER BY 1"), "table_name"));
            say("instant", rows(statement.executeQuery(
                "SELECT captured_at FROM stats.columns WHERE column_name = 'id'"), "captured_at"));
            statement.setMaxRows(1);
            say("max rows", rows(statement.executeQuery("SELECT column_name FROM stats.columns"), "column_name").size());
        }
        String sql = "SELECT column_name FROM stats.columns WHERE table_name = ? AND ndv > ? AND column_id < ?";
        try (PreparedStatement prepared = connection.prepareStatement(sql)) {
            ParameterMetaData parameters = prepared.getParameterMetaData();
            for (int at = 1; at <= parameters.getParameterCount(); at++) {
                say("parameter " + at, parameters.getParameterTypeName(at));
            }
            say("prepared schema", prepared.getMetaData().getColumnName(1));
            for (double ndv : new double[] {2, 100, 1e9}) {
                prepared.setString(1, "orders");
                prepared.setDouble(2, ndv);
                prepared.setLong(3, 10);
                say("prepared " + ndv, rows(prepared.executeQuery(), "column_name"));
            }
        }
        try (PreparedStatement prepared = connection.prepareStatement(
                "SELECT count(*) AS n FROM stats_all.columns WHERE captured_at < ?")) {
            prepared.setTimestamp(1, Timestamp.valueOf("2100-01-01 00:00:00"));
            say("prepared instant", rows(prepared.executeQuery(), "n"));
        }
        for (String wrong : new String[] {"SELEC 1", "SELECT nvd FROM stats.columns", "SELECT 1 FROM stats.colums",
                                          "DROP TABLE stats.columns", "SELECT * FROM read_csv('/etc/passwd')"}) {
            say("refused " + wrong, refusal(wrong, () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.executeQuery(wrong).close();
                }
            }));
        }
        say("unbound", refusal("unbound", () -> {
            try (PreparedStatement prepared = connection.prepareStatement(sql)) {
                prepared.executeQuery().close();
            }
        }));
        try (Statement statement = connection.createStatement()) {
            say("after refusals", rows(statement.executeQuery("SELECT 1 AS one"), "one"));
        }
        say("valid", connection.isValid(5));
        say("read only", connection.isReadOnly());
        say("autocommit", connection.getAutoCommit());
    }

    /** Holds connections with a prepared statement each until a line comes in. */
    static void idle(String uri, Properties login) throws Exception {
        int count = Integer.parseInt(login.getProperty("sessions"));
        login.remove("sessions");
        List<AutoCloseable> open = new ArrayList<>();
        Scanner lines = new Scanner(System.in);
        for (int batch : new int[] {8, count}) {
            for (int at = 0; at < batch; at++) {
                Connection connection = DriverManager.getConnection(uri, login);
                connection.getMetaData().getDatabaseProductName();
                PreparedStatement prepared =
                    connection.prepareStatement("SELECT * FROM stats.columns WHERE table_name = ?");
                open.add(prepared);
                open.add(connection);
            }
            say("open", batch);
            lines.nextLine();
        }
        for (AutoCloseable each : open) each.close();
        say("done", true);
    }
}
