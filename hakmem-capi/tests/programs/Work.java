import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;

/**
 * A mixed load for the native side: direct buffers, zip streams, threads, compiled code, children.
 */
public class Work {
    static void show(String name, Object value) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(value.toString().getBytes("UTF-8"));
        System.out.printf("%-10s %s%n", name, new BigInteger(1, digest).toString(16).substring(0, 16));
    }

    static long direct(long seed) {
        Random random = new Random(seed);
        ByteBuffer[] kept = new ByteBuffer[200];
        long sum = 0;
        for (int i = 0; i < 4000; i++) {
            int slot = random.nextInt(kept.length);
            kept[slot] = ByteBuffer.allocateDirect(1 + random.nextInt(20000));
            kept[slot].put(0, (byte) i);
            ByteBuffer other = kept[random.nextInt(kept.length)];
            sum += other == null ? 0 : other.get(0) + other.capacity();
        }
        return sum;
    }

    static int zip(int seed) throws Exception {
        byte[] data = new byte[300_000];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) (i * seed / 100);
        }
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (GZIPOutputStream out = new GZIPOutputStream(packed)) {
            out.write(data);
        }
        byte[] back = new GZIPInputStream(new ByteArrayInputStream(packed.toByteArray())).readAllBytes();
        return packed.size() + back.length;
    }

    static <T> List<T> parallel(int threads, List<Callable<T>> jobs) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<T> results = new ArrayList<>();
        for (Future<T> future : pool.invokeAll(jobs)) {
            results.add(future.get());
        }
        pool.shutdown();
        return results;
    }

    public static void main(String[] args) throws Exception {
        List<Callable<Long>> buffers = new ArrayList<>();
        List<Callable<Integer>> zips = new ArrayList<>();
        for (int i = 1; i <= 8; i++) {
            int seed = i;
            buffers.add(() -> direct(seed));
            zips.add(() -> zip(seed) + zip(seed + 100));
        }
        show("direct", parallel(4, buffers));
        show("zip", parallel(4, zips));
        TreeMap<String, List<Integer>> map = new TreeMap<>();
        for (int i = 0; i < 200_000; i++) {
            map.computeIfAbsent("key" + i * 7919L % 10007, k -> new ArrayList<>()).add(i);
        }
        show("map", map);
        show("regex", Pattern.compile("(\\w)(\\d+)").matcher(map.toString().substring(0, 500_000)).replaceAll("$2$1"));
        show("stream", IntStream.range(0, 300_000).parallel().mapToObj(Integer::toHexString)
            .collect(Collectors.groupingBy(String::length, TreeMap::new, Collectors.counting())));
        show("bigint", BigInteger.valueOf(3).pow(60_000));
        for (int i = 0; i < 300; i++) {
            Thread thread = new Thread(() -> ByteBuffer.allocateDirect(5000).put(0, (byte) 1));
            thread.start();
            thread.join();
        }
        Path file = Files.writeString(Path.of("java.txt"), map.firstEntry().toString());
        Process child = new ProcessBuilder("cat", file.toString()).start();
        show("child", new String(child.getInputStream().readAllBytes()) + child.waitFor());
    }
}
