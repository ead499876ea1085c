import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.sql.*;
import java.util.*;

/** The calls of SQL tools over the Arrow Flight SQL JDBC driver; prints one line for each thing found. */
public class Jdbc {
    static void show(String key, Object value) {
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
        show("done", true);
    }

    static void metadata(DatabaseMetaData meta) throws Exception {
        show("product", meta.getDatabaseProductName() + " " + meta.getDatabaseProductVersion());
        show("catalogs", rows(meta.getCatalogs(), "TABLE_CAT"));
        show("schemas", rows(meta.getSchemas(), "TABLE_SCHEM"));
        show("schemas like", rows(meta.getSchemas("statflight", "stats%"), "TABLE_SCHEM"));
        show("table types", rows(meta.getTableTypes(), "TABLE_TYPE"));
        show("tables", rows(meta.getTables(null, "stats", "col%", null), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE"));
        String[] types = {"BASE TABLE", "TABLE"};
        show("tables of types", rows(meta.getTables("statflight", "sys", "%", types), "TABLE_NAME"));
        show("no tables", rows(meta.getTables(null, null, "%", new String[] {"VIEW"}), "TABLE_NAME"));
        String[] columns = {"COLUMN_NAME", "TYPE_NAME", "DATA_TYPE", "ORDINAL_POSITION"};
        show("columns", rows(meta.getColumns(null, "stats", "columns", "%"), columns));
        String escape = meta.getSearchStringEscape();  // DBeaver writes it before each wildcard in a name
        show("escaped", rows(meta.getColumns(null, "stats" + escape + "_all", "column" + escape + "_groups", "%"), columns[0]));
        show("columns like", rows(meta.getColumns(null, "stats", "columns", "nd%"), columns));
        show("primary keys", rows(meta.getPrimaryKeys(null, "stats", "columns"), "COLUMN_NAME"));
        show("imported keys", rows(meta.getImportedKeys(null, "stats", "columns"), "PKCOLUMN_NAME"));
        show("exported keys", rows(meta.getExportedKeys(null, "stats", "columns"), "PKCOLUMN_NAME"));
        show("cross reference", rows(meta.getCrossReference(null, "stats", "columns", null, "stats", "tables"), "PKCOLUMN_NAME"));
        show("index info", rows(meta.getIndexInfo(null, "stats", "columns", false, true), "COLUMN_NAME"));
        show("type info", rows(meta.getTypeInfo(), "TYPE_NAME"));
        show("procedures", rows(meta.getProcedures(null, null, "%"), "PROCEDURE_NAME"));
        show("functions", rows(meta.getFunctions(null, null, "%"), "FUNCTION_NAME"));
        // tools call all of these methods, and some break if one fails
        for (Method method : DatabaseMetaData.class.getMethods()) {
            if (method.getParameterCount() > 0 || ResultSet.class.isAssignableFrom(method.getReturnType())) continue;
            try {
                show("meta " + method.getName(), method.invoke(meta));
            } catch (InvocationTargetException error) {
                show("meta " + method.getName(), "FAILED " + error.getCause());
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
                            show("grid of " + name, columns.getColumnName(at) + " FAILED " + error);
                        }
                    }
                }
                show("rows of " + name, rows);
            }
        }
        show("values", values);
    }

    static void statements(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            show("constant", rows(statement.executeQuery("SELECT 1 AS one, 'x' AS text"), "one", "text"));
            show("select", rows(statement.executeQuery(
                "SELECT column_name, ndv FROM stats.columns WHERE table_name = 'orders' ORDER BY column_id"),
                "column_name", "ndv"));
            show("union", rows(statement.executeQuery(
                "SELECT table_name FROM stats.columns UNION SELECT 'another' ORDER BY 1"), "table_name"));
            show("instant", rows(statement.executeQuery(
                "SELECT captured_at FROM stats.columns WHERE column_name = 'id'"), "captured_at"));
            statement.setMaxRows(1);
            show("max rows", rows(statement.executeQuery("SELECT column_name FROM stats.columns"), "column_name").size());
        }
        String sql = "SELECT column_name FROM stats.columns WHERE table_name = ? AND ndv > ? AND column_id < ?";
        try (PreparedStatement prepared = connection.prepareStatement(sql)) {
            ParameterMetaData parameters = prepared.getParameterMetaData();
            for (int at = 1; at <= parameters.getParameterCount(); at++) {
                show("parameter " + at, parameters.getParameterTypeName(at));
            }
            show("prepared schema", prepared.getMetaData().getColumnName(1));
            for (double ndv : new double[] {2, 100, 1e9}) {
                prepared.setString(1, "orders");
                prepared.setDouble(2, ndv);
                prepared.setLong(3, 10);
                show("prepared " + ndv, rows(prepared.executeQuery(), "column_name"));
            }
        }
        try (PreparedStatement prepared = connection.prepareStatement(
                "SELECT count(*) AS n FROM stats_all.columns WHERE captured_at < ?")) {
            prepared.setTimestamp(1, Timestamp.valueOf("2100-01-01 00:00:00"));
            show("prepared instant", rows(prepared.executeQuery(), "n"));
        }
        for (String wrong : new String[] {"SELEC 1", "SELECT nvd FROM stats.columns", "SELECT 1 FROM stats.colums",
                                          "DROP TABLE stats.columns", "SELECT * FROM read_csv('/etc/passwd')"}) {
            show("refused " + wrong, refusal(wrong, () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.executeQuery(wrong).close();
                }
            }));
        }
        show("unbound", refusal("unbound", () -> {
            try (PreparedStatement prepared = connection.prepareStatement(sql)) {
                prepared.executeQuery().close();
            }
        }));
        try (Statement statement = connection.createStatement()) {
            show("after refusals", rows(statement.executeQuery("SELECT 1 AS one"), "one"));
        }
        show("valid", connection.isValid(5));
        show("read only", connection.isReadOnly());
        show("autocommit", connection.getAutoCommit());
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
            show("open", batch);
            lines.nextLine();
        }
        for (AutoCloseable each : open) each.close();
        show("done", true);
    }
}
