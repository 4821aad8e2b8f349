package tamis.interop;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Measures how many messages a second the real engine filters on one thread, decoding included.
 *
 * <p>Arguments: {@code <properties file> <seconds> <expression>...}. The file holds property strings, each
 * as a 4-byte big-endian length and that many UTF-8 bytes. Prints, for each expression, the evaluations a
 * second and how many messages of the file match.
 */
public final class FilterBench {
    private static final double WARM_UP_SECONDS = 3;
    private static final int SLICES = 5;
    // Reading the clock once a batch keeps its cost out of the figures.
    private static final int BATCH = 1000;

    private final byte[][] messages;
    private final Expression expression;
    private int next;
    // A field, so that the JIT cannot drop evaluations whose result nobody reads.
    private long matched;

    private FilterBench(byte[][] messages, Expression expression) {
        this.messages = messages;
        this.expression = expression;
    }

    public static void main(String[] args) throws Exception {
        PrintStream stdout = System.out;
        // The engine's libraries may log to the console; stdout is for figures only.
        System.setOut(System.err);

        if (args.length < 3) {
            throw new IllegalArgumentException("usage: FilterBench <properties file> <seconds> <expression>...");
        }
        byte[][] messages = load(Path.of(args[0]));
        double seconds = Double.parseDouble(args[1]);
        for (String text : Arrays.asList(args).subList(2, args.length)) {
            Expression expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
            FilterBench bench = new FilterBench(messages, expression);
            bench.rateOver(WARM_UP_SECONDS);
            double rate = bench.medianRate(seconds);
            stdout.printf(Locale.ROOT, "%.1f\t%d%n", rate, bench.matchedInOnePass());
            stdout.flush();
        }
    }

    private static byte[][] load(Path file) throws IOException {
        List<byte[]> messages = new ArrayList<>();
        long left = Files.size(file);
        try (InputStream raw = Files.newInputStream(file);
                DataInputStream in = new DataInputStream(new BufferedInputStream(raw))) {
            while (left > 0) {
                byte[] message = new byte[in.readInt()];
                in.readFully(message);
                messages.add(message);
                left -= Integer.BYTES + message.length;
            }
        }
        if (messages.isEmpty()) {
            throw new IllegalArgumentException("no messages in " + file);
        }
        return messages.toArray(new byte[0][]);
    }

    private double medianRate(double seconds) {
        double[] rates = new double[SLICES];
        for (int i = 0; i < SLICES; i++) {
            rates[i] = rateOver(seconds / SLICES);
        }
        Arrays.sort(rates);
        return rates[SLICES / 2];
    }

    private double rateOver(double seconds) {
        long wanted = (long) (seconds * 1e9);
        long start = System.nanoTime();
        long elapsed;
        long evaluations = 0;
        do {
            evaluateNext(BATCH);
            evaluations += BATCH;
            elapsed = System.nanoTime() - start;
        } while (elapsed < wanted);
        return evaluations * 1e9 / elapsed;
    }

    private long matchedInOnePass() {
        next = 0;
        matched = 0;
        evaluateNext(messages.length);
        return matched;
    }

    private void evaluateNext(int count) {
        for (int i = 0; i < count; i++) {
            if (matches(messages[next])) {
                matched++;
            }
            next++;
            if (next == messages.length) {
                next = 0;
            }
        }
    }

    private boolean matches(byte[] message) {
        try {
            String encoded = new String(message, StandardCharsets.UTF_8);
            Map<String, String> properties = MessageDecoder.string2messageProperties(encoded);
            return Boolean.TRUE.equals(expression.evaluate(new PropertyContext(properties)));
        } catch (Throwable error) {
            // The broker, too, takes a failed evaluation for «no match».
            return false;
        }
    }
}
