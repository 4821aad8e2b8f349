package tamis.interop;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintStream;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Answers, line by line, what the real RocketMQ engine does with a request.
 *
 * <p>Modes, by the first argument: none (compile and evaluate an expression), {@code decode} (split a
 * property string), {@code numbers} (parse a number) and {@code digits} (list the decimal digits).
 */
public final class FilterOracle {
    private static final String NO_PROPERTY_MAP = "-";

    private FilterOracle() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream stdout = System.out;
        // The engine's libraries may log to the console; stdout is for answers only.
        System.setOut(System.err);

        String mode = args.length == 0 ? "evaluate" : args[0];
        try (Writer out = new BufferedWriter(new OutputStreamWriter(stdout, StandardCharsets.US_ASCII))) {
            switch (mode) {
                case "evaluate":
                    answerLines(out, FilterOracle::evaluate);
                    break;
                case "decode":
                    answerLines(out, FilterOracle::decode);
                    break;
                case "numbers":
                    answerLines(out, FilterOracle::parseNumber);
                    break;
                case "digits":
                    listDigits(out);
                    break;
                default:
                    throw new IllegalArgumentException("unknown mode: " + mode);
            }
        }
    }

    private static void answerLines(Writer out, UnaryOperator<String> answer) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = in.readLine()) != null) {
            out.write(answer.apply(line));
            out.write('\n');
            // A peer that waits for its answer sends nothing more meanwhile; in bulk, input is always ready.
            if (!in.ready()) {
                out.flush();
            }
        }
    }

    private static String evaluate(String request) {
        // The limit keeps trailing empty fields: an empty value is a value.
        String[] fields = request.split("\t", -1);
        String text = textOf(fields[0]);
        Map<String, String> properties = propertiesOf(fields);

        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable error) {
            String message = error.getMessage() == null ? error.getClass().getName() : error.getMessage();
            return "compile-error\t" + base64(message.getBytes(StandardCharsets.UTF_8));
        }
        try {
            Object result = expression.evaluate(new PropertyContext(properties));
            if (result == null || result instanceof Boolean) {
                return String.valueOf(result);
            }
            return "other:" + result.getClass().getSimpleName();
        } catch (Throwable error) {
            return "error:" + error.getClass().getSimpleName();
        }
    }

    private static Map<String, String> propertiesOf(String[] fields) {
        if (fields.length == 2 && fields[1].equals(NO_PROPERTY_MAP)) {
            return null;
        }
        if (fields.length % 2 == 0) {
            throw new IllegalArgumentException("a property name without a value");
        }
        Map<String, String> properties = new HashMap<>();
        for (int i = 1; i < fields.length; i += 2) {
            properties.put(textOf(fields[i]), textOf(fields[i + 1]));
        }
        return properties;
    }

    private static String decode(String request) {
        String encoded = new String(Base64.getDecoder().decode(request), StandardCharsets.UTF_8);
        Map<String, String> properties;
        try {
            properties = new TreeMap<>(MessageDecoder.string2messageProperties(encoded));
        } catch (Throwable error) {
            return "error:" + error.getClass().getSimpleName();
        }
        StringBuilder answer = new StringBuilder();
        String separator = "";
        for (Map.Entry<String, String> property : properties.entrySet()) {
            answer.append(separator).append(fieldOf(property.getKey()));
            answer.append('\t').append(fieldOf(property.getValue()));
            separator = "\t";
        }
        return answer.toString();
    }

    private static String parseNumber(String request) {
        String[] fields = request.split("\t", -1);
        if (fields.length != 2) {
            throw new IllegalArgumentException("expected a kind and a text");
        }
        String text = textOf(fields[1]);
        try {
            switch (fields[0]) {
                case "int":
                    return Integer.valueOf(text).toString();
                case "long":
                    return Long.valueOf(text).toString();
                case "double":
                    return String.format("%016x", Double.doubleToRawLongBits(Double.valueOf(text)));
                default:
                    break;
            }
        } catch (NumberFormatException error) {
            return "error";
        }
        throw new IllegalArgumentException("unknown kind of number: " + fields[0]);
    }

    private static void listDigits(Writer out) throws IOException {
        for (int code = Character.MIN_VALUE; code <= Character.MAX_VALUE; code++) {
            int digit = Character.digit((char) code, 10);
            if (digit >= 0) {
                out.write(code + "\t" + digit + "\n");
            }
        }
    }

    // The UTF-16 charset replaces lone surrogates, a char buffer leaves them as they are.
    private static String textOf(String field) {
        byte[] bytes = Base64.getDecoder().decode(field);
        if (bytes.length % 2 != 0) {
            throw new IllegalArgumentException("half a UTF-16 unit");
        }
        return ByteBuffer.wrap(bytes).asCharBuffer().toString();
    }

    private static String fieldOf(String text) {
        ByteBuffer bytes = ByteBuffer.allocate(2 * text.length());
        bytes.asCharBuffer().put(text);
        return base64(bytes.array());
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
