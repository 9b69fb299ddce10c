import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java producer at full speed: {@code java Flood BOOTSTRAP TOPIC MODE}, see {@code tests/interop/flood.py}. */
public class Flood {
    static final int KEYS = 32;
    static final int MAX_OUTSTANDING = 2_000;

    static final Semaphore room = new Semaphore(MAX_OUTSTANDING);
    static final Map<String, Map<Integer, String>> refused = new TreeMap<>();
    static final Map<String, Long> acknowledgedAt = new HashMap<>();
    static final List<Long> pausesMs = new ArrayList<>(List.of(0L));
    static final Set<Integer> partitions = new HashSet<>();
    static volatile boolean stopped = false;

    static synchronized void settle(String key, int round, RecordMetadata written, Exception error) {
        room.release();
        if (error != null) {
            refused.computeIfAbsent(key, ignored -> new TreeMap<>()).put(round, error.getClass().getSimpleName());
            return;
        }
        long now = System.nanoTime();
        long pauseMs = (now - acknowledgedAt.getOrDefault(key, now)) / 1_000_000;
        pausesMs.set(pausesMs.size() - 1, Math.max(pausesMs.get(pausesMs.size() - 1), pauseMs));
        acknowledgedAt.put(key, now);
        if (partitions.add(written.partition())) {
            System.out.println("partition " + written.partition());
            System.out.flush();
        }
    }

    static synchronized void beginPause() {
        pausesMs.add(0L);
    }

    static String json(int rounds) {
        List<String> byKey = new ArrayList<>();
        refused.forEach((key, byRound) -> {
            List<String> entries = new ArrayList<>();
            byRound.forEach((round, error) -> entries.add("\"" + round + "\": \"" + error + "\""));
            byKey.add("\"" + key + "\": {" + String.join(", ", entries) + "}");
        });
        return "{\"rounds\": " + rounds + ", \"refused\": {" + String.join(", ", byKey) + "}, \"pauses_ms\": "
                + pausesMs + "}";
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1], mode = arguments[2];
        Thread end = new Thread(() -> {
            try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
                while (input.readLine() != null) {
                    beginPause();
                }
            } catch (IOException error) {
                // as the end of the input
            }
            stopped = true;
        });
        end.setDaemon(true);
        end.start();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("acks", "all");
        settings.put("linger.ms", "5");
        settings.put("enable.idempotence", Boolean.toString(mode.equals("idempotent")));
        int rounds = 0;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (!stopped) {
                for (int number = 0; number < KEYS; number++) {
                    room.acquire();
                    String key = mode + "-" + number;
                    int round = rounds;
                    producer.send(
                            new ProducerRecord<>(topic, key.getBytes(), Integer.toString(round).getBytes()),
                            (written, error) -> settle(key, round, written, error));
                }
                rounds++;
            }
        }
        System.out.println(json(rounds));
    }
}
