import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.io.PrintStream;
import java.sql.*;
import java.util.StringJoiner;

/** Asks by the Arrow Flight SQL JDBC driver: its argument is the URL, questions are on standard input. */
public class ByJdbc {
    static String quoted(Object value) throws SQLException {
        if (value == null) return "null";
        if (value instanceof java.sql.Array array) value = array.getArray();
        if (value instanceof Object[] values) {
            StringJoiner items = new StringJoiner(", ", "[", "]");
            for (Object each : values) items.add(quoted(each));
            return items.toString();
        }
        StringBuilder text = new StringBuilder("\"");
        for (char each : String.valueOf(value).toCharArray()) {
            if (each == '"' || each == '\\') text.append('\\').append(each);
            else if (each < ' ') text.append(String.format("\\u%04x", (int) each));
            else text.append(each);
        }
        return text.append('"').toString();
    }

    static String rows(ResultSet found) throws SQLException {
        StringJoiner rows = new StringJoiner(", ", "[", "]");
        try (found) {
            int width = found.getMetaData().getColumnCount();
            while (found.next()) {
                StringJoiner row = new StringJoiner(", ", "[", "]");
                for (int at = 1; at <= width; at++) row.add(quoted(found.getObject(at)));
                rows.add(row.toString());
            }
        }
        return rows.toString();
    }

    static String answer(Connection connection, String sql, String[] parts) throws SQLException {
        if (parts.length == 2) {
            try (Statement statement = connection.createStatement()) {
                return rows(statement.executeQuery(sql));
            }
        }
        try (PreparedStatement prepared = connection.prepareStatement(sql)) {
            for (int at = 1; at <= parts.length - 2; at++) {
                String value = parts[at + 1].split(":", 2)[1];
                switch (prepared.getParameterMetaData().getParameterType(at)) {  // the driver takes no other
                    case Types.BIGINT, Types.INTEGER -> prepared.setLong(at, Long.parseLong(value));
                    case Types.DOUBLE -> prepared.setDouble(at, Double.parseDouble(value));
                    case Types.DATE -> prepared.setDate(at, Date.valueOf(value));
                    default -> prepared.setString(at, value);
                }
            }
            return rows(prepared.executeQuery());
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            for (String line; (line = lines.readLine()) != null;) {
                String[] parts = line.split("\t");
                String told;
                try {
                    told = "\"rows\": " + answer(connection, parts[1], parts);
                } catch (SQLException error) {
                    Throwable cause = error;
                    while (cause.getCause() != null) cause = cause.getCause();
                    told = "\"error\": " + quoted(error.getMessage() + " / " + cause.getMessage());
                }
                out.println("{\"name\": " + quoted(parts[0]) + ", " + told + "}");
            }
        }
    }
}
